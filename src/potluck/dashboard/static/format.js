// Quantities as people read them: the same rules as potluck.types.quantities, so that the page and the
// command line agree. Pure.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const RATE_PREFIXES = ["", "k", "M", "G", "T"];

/** What a cell shows instead of a value that is not known. */
export const NOTHING = "–";

/** 0.1234 → "0.123", 1234.5 → "1235": at least three digits, and no exponent. */
export function formatNumber(value) {
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return String(Number(value.toFixed(1)));
  if (size >= 1) return String(Number(value.toFixed(2)));
  return size < 0.0005 ? "0" : String(Number(value.toFixed(3)));
}

/** 1536 → "1.5 KiB". */
export function formatBytes(numBytes) {
  let size = numBytes;
  let unit = 0;
  while (size >= 1024 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${formatNumber(size)} ${BYTE_UNITS[unit]}`;
}

/** 1.5e9, "B/s" → "1.5 GB/s". */
export function formatRate(perSecond, unit) {
  let size = perSecond;
  let prefix = 0;
  while (size >= 1000 && prefix < RATE_PREFIXES.length - 1) {
    size /= 1000;
    prefix += 1;
  }
  return `${formatNumber(size)} ${RATE_PREFIXES[prefix]}${unit}`;
}

/** 42e-6 → "42 µs", 0.0042 → "4.2 ms", 1.5 → "1.5 s", 95 → "1 min 35 s", 7320 → "2 h 2 min". */
export function formatSeconds(seconds) {
  if (seconds > 0 && seconds < 0.001) return `${formatNumber(seconds * 1e6)} µs`;
  if (seconds < 1) return `${formatNumber(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${formatNumber(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** 0.353 → "35 %", with a space at which no line is broken. */
export function formatPercent(part) {
  const percent = part * 100;
  return percent !== 0 && Math.abs(percent) < 10
    ? `${Number(percent.toPrecision(2))}\u00a0%`
    : `${percent.toFixed(0)}\u00a0%`;
}

/** Milliseconds only, so that numbers in one column compare: 0.0042 → "4.2 ms". */
export function formatMilliseconds(seconds) {
  return `${formatNumber(seconds * 1000)} ms`;
}

/** The time of day, and the date if it was another day. `now` and `time` are seconds since 1970. */
export function formatTime(time, now) {
  const then = new Date(time * 1000);
  const clock = then.toLocaleTimeString([], { hour12: false });
  const isToday = then.toDateString() === new Date(now * 1000).toDateString();
  return isToday ? clock : `${then.toLocaleDateString()} ${clock}`;
}

/** "3 nodes", "1 node". */
export function count(number, singular, plural = `${singular}s`) {
  return `${number} ${number === 1 ? singular : plural}`;
}
