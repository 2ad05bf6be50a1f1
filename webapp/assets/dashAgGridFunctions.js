/* Formats of numbers in tables; sorting and filtering use the plain values. */
const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "u"], [1e-9, "n"]];

const withPrefix = (value, minimum, maximum) => {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0";
  const prefixes = PREFIXES.filter(([step]) => step >= minimum && step <= maximum);
  const [step, prefix] = prefixes.find(([step]) => value >= step * 0.9995) || prefixes[prefixes.length - 1];
  const digits = value / step;
  return `${digits >= 99.95 ? digits.toFixed(0) : digits.toPrecision(3)}${prefix}`;
};

functions.amount = (value) => withPrefix(value, 1, 1e18);
functions.duration = (value) => (value ? `${withPrefix(value, 1e-9, 1).replace(/([mun]?)$/, " $1")}s` : "-");
functions.percent = (value) => (value === null || value === undefined ? "-" : `${(100 * value).toFixed(1)}%`);
