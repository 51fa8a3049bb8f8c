// Figures as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);
export function percent(value) {
  const hundred = 100 * value;
  if (hundred > 0 && hundred < 0.1) return "< 0.1 %";
  return `${hundred > 0 && hundred < 1 ? hundred.toFixed(1) : Math.round(hundred)} %`;
}
export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
export const times = (value) => `${fixed(value, 2)} ×`;

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 0.1) return `${(value * 1e3).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1e3)} ms`;
  return value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

export const shortId = (id) => id.replace(/^(chatcmpl|cmpl)-/, "").slice(0, 8) + (/-\d+$/.exec(id)?.[0] ?? "");

// Depths in few groups, so that a handful of colours tells them apart.
export const TIERS = ["off", "1", "2–3", "4–6", "7 or more"];
export const tierOf = (depth) => (depth === 0 ? 0 : depth === 1 ? 1 : depth <= 3 ? 2 : depth <= 6 ? 3 : 4);
