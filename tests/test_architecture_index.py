"""llmviewer/architectures/index.json has the module of each model type.

`python tests/test_architecture_index.py` remakes it.
"""

import subprocess
import sys

from llmviewer import architectures
from llmviewer.architectures import INDEX, index_json


def test_the_index_has_the_module_of_each_model_type():
    written, registered = INDEX.read_text(encoding="utf-8"), index_json()
    assert written == registered, f"`python tests/test_architecture_index.py` remakes {INDEX.name}"
    assert set(architectures._indexed().values()) == set(architectures._MODULES), "a module registers no builder"


def imported_for(model_type, *, index):
    """Modules of architectures that a new process imports to find a builder."""
    code = f"""
import sys
from llmviewer import architectures
from llmviewer.documents import Section
architectures._indexed = lambda: {index}
architectures.builder(Section({{"model_type": "{model_type}"}}, "config.json"))
print(*(name for name in architectures._MODULES if f"llmviewer.architectures.{{name}}" in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_builder_is_found_by_importing_its_module_alone():
    assert imported_for("gpt2", index=architectures._indexed()) == ["gpt"]


def test_a_model_type_that_the_index_lacks_is_found():
    assert imported_for("gpt2", index={}) == list(architectures._MODULES)


if __name__ == "__main__":
    INDEX.write_text(index_json(), encoding="utf-8")
