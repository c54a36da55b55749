/** Most stop strings of a request, and characters of each. */
const MAX_STOPS = 16;
const MAX_STOP = 256;

/** Adds thousands separators to the numbers in a text. */
const grouped = (text) => text.replace(/\d{4,}/g, (digits) => BigInt(digits).toLocaleString("en"));

/** Returns a field's name as the page shows it now. */
const nameOf = ({ name }) => (typeof name === "function" ? name() : name);

/** Reads a number exactly: JavaScript's own numbers are exact up to 2^53 only. */
const exact = (text) => (/^-?\d+$/.test(text) ? BigInt(text) : Number(text));

/** Returns true if a numeric input has a number within its bounds. */
function isWithin({ value, min, max, step }) {
  if (value === "" || (step === "1" && !Number.isInteger(Number(value)))) return false;
  const number = exact(value);
  if (min !== "" && number < exact(min)) return false;
  return max === "" || number <= exact(max);
}

/** Describes the numbers that an input takes. */
function boundsWords({ min, max, step }) {
  const kind = step === "1" ? "a whole number" : "a number";
  return max === "" ? `${kind} of at least ${min}` : `${kind} from ${min} to ${grouped(max)}`;
}

/** Describes what is wrong with a field's input; empty if nothing is. `field.empty` says what an empty input stands for. */
function problemOf(field) {
  const input = at(field.id);
  if (field.check) return field.check();
  // The server knows which models need a text.
  if (input.type !== "number") return "";
  const isEmpty = input.value === "" && !input.validity.badInput;
  if ((isEmpty && field.empty) || isWithin(input)) return "";
  return `enter ${boundsWords(input)}${field.empty ? `, or nothing for ${field.empty}` : ""}`;
}

/** Describes stop strings that the server does not take. */
function stopProblem() {
  const all = stopStrings();
  if (all.length > MAX_STOPS) return `enter at most ${MAX_STOPS} lines, not ${shown(all.length, 0)}`;
  const long = all.find((text) => [...text].length > MAX_STOP);
  return long ? `enter at most ${MAX_STOP} characters a line, not ${shown([...long].length, 0)}` : "";
}

/** Says a server's refusal in the page's words. `code` is the name of the violated rule, and `field` the input's, if one is known. */
function refusalWords({ message, code }, field) {
  const [, bound, found] = /expected (.*?)(?: \((?:the value of|unless) [^)]*\))?, found (.*?)(?: \(line \d+ column \d+\))?$/s.exec(message) || [];
  const name = field && nameOf(field);
  switch (code) {
    case "unknown_model":
      return "The server no longer has this model. Reload the page to see its models.";
    case "oversized":
      return `The text is too large: the server takes ${grouped(bound)} in one request.`;
    case "message_too_long":
      return "Text: too long for one message. Shorten it.";
    case "never_fits":
      return "The request needs more memory than the server allows for one request. Use a shorter text or a smaller length.";
    case "too_much_work":
      return "The request needs more computation than the server allows for one request. Use a shorter text or a smaller length.";
  }
  if (!field) return `The server refused the request: ${message}.`;
  const unknown = /found (.+) at (\w+) (\d+)$/.exec(message);
  // The server counts from 0.
  if (code === "unknown_symbol" && unknown) return `${name}: the model has no symbol for ${unknown[1]} (${unknown[2]} ${Number(unknown[3]) + 1}).`;
  if (field.needed && /^(text of )?at least one /.test(bound)) return `${name}: enter ${field.needed}.`;
  if (bound && code === "too_long") return `${name}: too long. The server takes ${grouped(bound)}. ${field.shorten || "Shorten it."}`;
  if (bound) return `${name}: the server takes ${grouped(bound)}, not ${grouped(found)}.`;
  return `${name}: the server refused it: ${message}.`;
}

