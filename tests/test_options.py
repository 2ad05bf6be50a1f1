"""Options of a setting: each declared once, and taken alike by Python, the command line and the page.

`python -m tests.test_options` remakes docs/options.md and the option table of README.md.
"""

import re
import subprocess
import sys
from dataclasses import fields
from inspect import isfunction, signature, unwrap
from pathlib import Path
from typing import is_typeddict

import click
import pytest

import llmviewer
from llmviewer import InputError, Request, Setting, analyze, options, sweep
from llmviewer.analyzing.analysis import largest_request
from llmviewer.arguments import _hints
from llmviewer.cli import cli, main
from llmviewer.options import PARAMETERS, LayoutOptions, PriceOptions, RequestOptions, SettingOptions, declared
from llmviewer.parallel.layout import Layout
from llmviewer.parameters import DEGREES, kind_of
from llmviewer.serving.options import SimulationOptions
from llmviewer.webapp.state import FIELD_TYPES, State


def test_declarations_import_nothing_heavy():
    heavy = "import sys, llmviewer.options; print({'numpy', 'click'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_every_option_has_a_short_description_and_numbers_have_limits():
    for name, parameter in (PARAMETERS | declared(RequestOptions)).items():
        assert 0 < len(parameter.about) <= 100, name
        assert parameter.about.endswith("."), name
    for name, kind in _hints().items():
        if kind in (int, float):
            assert PARAMETERS[name].limits, name
            assert PARAMETERS[name].holds(PARAMETERS[name].default), name


def test_options_of_a_layout_are_its_fields():
    defaults = {name: p.default for name, p in declared(LayoutOptions).items() if name != "layout"}
    assert {f.name: f.default for f in fields(Layout)} == defaults


def test_functions_show_the_options_that_they_take():
    shown = signature(analyze).parameters
    assert PARAMETERS.keys() < shown.keys()
    assert (shown["tp"].default, shown["tp"].annotation, shown["quant"].annotation) == (1, int, "str | None")
    assert "tp: Tensor parallelism" in analyze.__doc__
    assert "bound" not in signature(sweep).parameters


REQUEST = declared(RequestOptions)
OWN = {"compare": {"layout"}}  # several layouts, which the command line makes of several degrees


def test_no_public_function_declares_a_shared_parameter_again():
    shared = PARAMETERS.keys() | declared(RequestOptions).keys()
    functions = {name: unwrap(each) for name in llmviewer.__all__ if isfunction(each := getattr(llmviewer, name))}
    codes = {name: function.__code__ for name, function in functions.items()}
    own = {name: {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} for name, code in codes.items()}
    assert {name: repeated for name, names in own.items() if (repeated := names & shared)} == OWN


def test_no_command_declares_an_option_of_a_request_again():
    kinds = [each for each in vars(options).values() if is_typeddict(each)]
    abouts = {name: {declared(kind)[name].about for kind in kinds if name in declared(kind)} for name in REQUEST}
    context = click.Context(cli)
    for command in cli.list_commands(context):
        for each in cli.get_command(context, command).params:
            if each.name in REQUEST and isinstance(each, click.Option):
                assert any(map(each.help.startswith, abouts[each.name])), (command, each.name)


@pytest.mark.parametrize(
    "call",
    [
        lambda **asked: analyze("gpt2", "l4", **asked),
        lambda **asked: llmviewer.compare("gpt2", "l4", **asked),
        lambda **asked: llmviewer.choose("gpt2", hardware=["l4"], **asked),
        lambda **asked: llmviewer.plan("gpt2", hardware=["l4"], rate=1, **asked),
        lambda **asked: llmviewer.advise("gpt2", "l4", **asked),
        lambda **asked: llmviewer.search("gpt2", "l4", {"depth": [4]}, **asked),
        lambda **asked: llmviewer.split("gpt2", "l4", host="ryzen-9-9950x", **asked),
        lambda **asked: llmviewer.disaggregate("gpt2", "l4", "l4", **asked),
    ],
)
def test_lengths_are_checked_alike_everywhere(call):
    with pytest.raises(InputError, match=r"^prompt must be a whole number of at least 1; got 0$"):
        call(prompt=0)
    with pytest.raises(InputError, match=r"^gen must be a whole number of at least 1; got 'x'$"):
        call(gen="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'promt'; did you mean prompt"):
        call(promt=1)


def test_degrees_are_options_of_their_own_or_one_layout():
    one, other = (analyze("gpt2", "l4", **given) for given in ({"tp": 2}, {"layout": "tp=2"}))
    assert one.to_dict() == other.to_dict()
    assert one.setting.layout.devices == 2
    with pytest.raises(InputError, match=r"^layout must be left out beside tp, which it sets too; give one of them$"):
        analyze("gpt2", "l4", layout="tp=2", tp=2)
    with pytest.raises(
        InputError, match=r"^collective must be one of auto, ring, tree, one-shot, two-shot; got 'star'"
    ):
        analyze("gpt2", "l4", collective="star")


def test_offloading_waits_by_a_word_or_by_an_option():
    one, other = (
        Setting.of("gpt2", "l4", **given)
        for given in ({"offload": "weights=0.5 sync"}, {"offload": "weights=0.5", "offload_sync": True})
    )
    assert one.offload == other.offload


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tp": "2"}, "tp must be a whole number; got '2'"),
        ({"tp": True}, "tp must be a whole number; got True"),
        ({"tp": 0}, "tp must be at least 1; got 0"),
        ({"overlap": 1}, "overlap must be true or false; got 1"),
        ({"quant": 4}, "quant must be text; got 4"),
        ({"techniques": "fusion"}, "techniques must be a list of text or a mapping or a Technique; got 'fusion'"),
    ],
)
def test_option_of_the_wrong_type_is_refused_by_name(given, error):
    with pytest.raises(InputError) as raised:
        analyze("gpt2", "l4", **given)
    assert str(raised.value) == error


def test_an_unknown_option_is_a_type_error_with_the_nearest_name():
    with pytest.raises(TypeError, match=r"^unexpected keyword argument 'quat'; did you mean quant"):
        analyze("gpt2", "l4", quat="fp8")


def test_inputs_of_a_setting_reproduce_it():
    given = {"quant": "W4A16g128", "tp": 2, "techniques": ("fusion",), "engine": "vllm", "expert_skew": 0.5}
    setting = Setting.of("mixtral-8x7b", "h100-sxm", **given)
    told = setting.inputs()
    again = Setting.of(
        setting.model, setting.hardware,
        **{name: value for name, value in told.items() if name in PARAMETERS and name != "library"},
    )  # fmt: skip
    assert again == setting
    assert told.keys() - {"devices"} <= SettingOptions.__annotations__.keys()


def test_repr_of_a_setting_is_the_call_that_makes_it():
    given = {"quant": "W4A16g128", "layout": "tp=2", "techniques": ("fusion",), "engine": "vllm"}
    setting = Setting.of("mixtral-8x7b", "h100-sxm", hardware_set=["memory.bandwidth=2x"], **given)
    assert repr(setting).startswith("Setting.of('mixtral-8x7b', 'h100-sxm', hardware_set=('memory.bandwidth=2x',), ")
    assert eval(repr(setting)) == setting
    assert repr(Setting.of("gpt2", "l4")) == "Setting.of('gpt2', 'l4')"


def test_a_setting_with_an_option_that_a_function_lacks_is_refused():
    setting = Setting.of("deepseek-v3", "h200-sxm", tp=8, mtp=True)
    with pytest.raises(InputError, match=r"^mtp of the Setting is not supported here"):
        llmviewer.choose(setting, Request())


def test_a_setting_and_a_request_give_the_analysis_of_their_arguments():
    setting, request = Setting.of("gpt2", "l4", quant="fp8", tp=2), Request(batch=4, prompt=64, gen=8)
    one = analyze(setting, request)
    assert one.to_dict() == analyze("gpt2", "l4", quant="fp8", tp=2, batch=4, prompt=64, gen=8).to_dict()
    assert one.setting is setting
    assert (one.request.batch, one.request.gen, one.request.kv_len) == (4, 8, 65)
    largest = largest_request(setting, request)
    assert (
        analyze(setting, largest).to_dict()
        == analyze("gpt2", "l4", quant="fp8", tp=2, batch="max", prompt=64, gen=8).to_dict()
    )


def test_a_setting_needs_a_request_and_a_request_a_setting():
    with pytest.raises(InputError, match=r"^request must be a Request, which follows a Setting; got 'l4'$"):
        analyze(Setting.of("gpt2", "l4"), "l4")
    with pytest.raises(InputError, match=r"^model must be a Setting before a Request; got 'gpt2'$"):
        analyze("gpt2", Request())
    with pytest.raises(InputError, match=r"^tp must be left out after a Setting and a Request, which have it$"):
        analyze(Setting.of("gpt2", "l4"), Request(), tp=2)
    with pytest.raises(InputError, match=r"^batch must be a whole number of at least 1; got 0$"):
        analyze(Setting.of("gpt2", "l4"), Request(batch=0))


def test_names_of_the_last_release_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"^llmviewer\.estimate_kernel is now llmviewer\.kernel$"):
        assert llmviewer.estimate_kernel is llmviewer.kernel
    inputs = analyze("gpt2", "l4").inputs
    with pytest.warns(DeprecationWarning, match=r"^inputs\.batch is now inputs\['batch'\]$"):
        assert inputs.batch == inputs["batch"] == 1
    with pytest.warns(DeprecationWarning, match=r"^llmviewer\.recorded is now llmviewer\.timeline$"):
        assert llmviewer.recorded is llmviewer.timeline
    for old_name, name in {"saturate": "max_throughput", "load_curve": "concurrency_sweep"}.items():
        with pytest.warns(DeprecationWarning, match=rf"^llmviewer\.{old_name} is now llmviewer\.{name}$"):
            assert getattr(llmviewer, old_name) is getattr(llmviewer, name)
    with pytest.warns(DeprecationWarning, match=r"^llmviewer\.recommend is now llmviewer\.advise, and given is "):
        old = llmviewer.recommend("gpt2", "t4", prompt=64, gen=8, given="eagle", without=("draft", "model"))
    now = llmviewer.advise("gpt2", "t4", prompt=64, gen=8, techniques=["eagle"], without=("draft", "model"))
    assert old.to_dict() == now.to_dict()


def test_replicas_go_by_their_names_of_the_last_release_with_a_warning(capsys):
    asked = {"model": "gpt2", "hardware": "l4", "rate": 1, "requests": 5, "bound": True}
    now = llmviewer.simulate(**asked, replicas=2, prefill_replicas=1)
    with pytest.warns(DeprecationWarning, match=r"^simulate\((copies|readers)=\) is now (prefill_)?replicas=$"):
        old = llmviewer.simulate(**asked, copies=2, readers=1)
    assert old.to_dict() == now.to_dict()
    for old_name, value in {"copies": 2, "readers": 1}.items():
        with pytest.warns(DeprecationWarning, match=rf"^Simulation\.{old_name} is now "):
            assert getattr(now, old_name) == value == now.inputs[old_name]
    with pytest.raises(TypeError, match=r"^copies is the old name of replicas; give one of them$"):
        llmviewer.simulate(**asked, copies=2, replicas=2)
    command = ["simulate", "gpt2", "l4", "--rate=1", "--requests=5", "--bound", "--format=json"]
    printed = []
    for names in (["--replicas", "2", "--prefill-replicas=1"], ["--copies", "2", "--readers=1"]):
        assert main([*command, *names]) == 0
        printed.append(capsys.readouterr())
    assert printed[0].out == printed[1].out
    assert printed[1].err == "llmviewer: --copies is now --replicas\nllmviewer: --readers is now --prefill-replicas\n"


def test_functions_of_requests_over_time_take_a_setting_as_analyze_does():
    options = {"quant": "fp8", "tp": 2}
    setting = Setting.of("gpt2", "l4", **options)
    requests = {"prompt_lengths": 64, "gen_lengths": 8}
    for run, given in (
        (llmviewer.simulate, {"rate": 5, "requests": 20, **requests}),
        (llmviewer.max_throughput, {**requests, "max_batch": 8}),
        (llmviewer.advise, {"prompt": 64, "gen": 8, "without": ("answers", "draft", "model")}),
    ):
        assert run(setting, **given).to_dict() == run("gpt2", "l4", **options, **given).to_dict()
        with pytest.raises(InputError, match=r"^tp must be left out after a Setting, which has it$"):
            run(setting, tp=2, **given)
        with pytest.raises(InputError, match=r"^hardware must be given with a model; or give a Setting in place of"):
            run("gpt2", **given)


PAGE = Path(__file__).parents[1] / "docs" / "options.md"
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- options of analyze: python -m tests.test_options -->\n", "<!-- end of options -->\n"
INTRO = """\
# Options of requests, settings and servers

| where | an option is |
|---|---|
| command line | the flag in the table |
| Python | a keyword of the function and of `Setting.of()`, by its name (`tp=2`) |
| scenario file | a key, by its flag without dashes |
| link to the page | the key in the column *link* |
| JSON document | a key of `inputs`; parallelism and collectives are one, `layout`; `offload_sync` is in `offload` |

Each option is declared once, in `llmviewer/options.py` or `llmviewer/serving/options.py`, from which Python, the
command line, the page and this table are made (`python -m tests.test_options`).
"""
GROUPS = {
    "Of a request": RequestOptions,
    "Of a setting": SettingOptions,
    "Of requests over time (`simulate`)": SimulationOptions,
    "Of prices": PriceOptions,
}
VALUES = {
    bool: "true or false", float: "a number", int: "a whole number", "float | None": "a number",
    "float | str | None": "a number or text", "int | str | None": "a whole number or text",
}  # fmt: skip
NOT_ON_THE_PAGE = {"profiles", "bound", "offload_sync", *LayoutOptions.__annotations__} - {*DEGREES}


def page():
    """The text of docs/options.md."""
    return INTRO + "".join(f"\n## {title}\n\n{table(options)}" for title, options in GROUPS.items())


def table(options):
    head = ("name", "command line", "link", "unit", "values", "default", "meaning")
    rows = [head, ("---",) * len(head)]
    for name, each in declared(options).items():
        key = each.link or name
        default = {None: "", (): "", "": ""}.get(each.default, f"`{str(each.default).lower()}`")
        limits = f"from {each.least:,.0f} to {each.most:,.0f}" if each.most < float("inf") else each.limits
        values = limits or VALUES.get(kind_of(options.__annotations__[name]), "text")
        option = ", ".join(each.flag.split()) or f"--{name.replace('_', '-')}"
        link = f"`{key}`" if key in FIELD_TYPES else ""
        rows.append((f"`{name}`", f"`{option}`", link, each.unit, values, default, each.help))
    return "".join(f"| {' | '.join(cell.replace('|', ' or ') for cell in row)} |\n" for row in rows)


def readme():
    """The text of README.md, with a line for each option of `analyze`: the first sentence of its help."""
    head, begin, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    command = cli.get_command(click.Context(cli), "analyze")
    context = click.Context(command)
    rows = ["| option | meaning |", "|---|---|"]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            names, description = parameter.get_help_record(context)
            sentence = re.split(r"\.? +\[default|\. (?=[A-Z])|\.$", description)[0]
            rows.append("| `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in (names, sentence))))
    return head + begin + "".join(f"{row}\n" for row in rows) + end + tail


@pytest.mark.parametrize(("path", "text"), [(PAGE, page), (README, readme)])
def test_the_documentation_has_every_option(path, text):
    assert path.read_text(encoding="utf-8") == text(), "make it anew: python -m tests.test_options"


def test_the_page_has_every_option_under_its_name_with_its_default():
    for name, each in (PARAMETERS | declared(RequestOptions)).items():
        key = each.link or name
        if name in NOT_ON_THE_PAGE:
            assert key not in FIELD_TYPES
        elif each.default not in (None, (), ""):
            assert getattr(State(), key) == each.default, name
            assert each.label, name


def test_commands_take_the_options_with_their_defaults():
    command = cli.get_command(click.Context(cli), "analyze")
    taken = {parameter.name: parameter for parameter in command.params}
    for name, each in PARAMETERS.items():
        assert taken[name].default == each.default, name
        assert taken[name].opts == [each.flag or f"--{name.replace('_', '-')}"]


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
