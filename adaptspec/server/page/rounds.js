// Rounds of one request: a strip with a bar for each, and each in a sentence.

import { count, svg, tint } from "./dom.js";

const LEAST_SHOWN = 120; // rounds that a strip has room for at least
const LEAST_DEPTH = 6;

export const makeStrip = () => svg("svg", { class: "strip", preserveAspectRatio: "none", "aria-hidden": "true" });

// The height that strips need to be comparable.
export const deepest = (requests) => Math.max(LEAST_DEPTH, ...requests.flatMap(({ rounds }) => rounds.map((round) => round.drafted)));

// Draws one path per drafter and kind of bar, so that a strip stays cheap however many rounds it has.
export function drawStrip(strip, rounds, depth) {
  const paths = new Map();
  const bar = (kind, drafter, x, height) => {
    const key = `${kind} ${drafter}`;
    paths.set(key, (paths.get(key) ?? "") + `M${x + 0.1} ${depth}v${-height}h.8v${height}z`);
  };
  rounds.forEach(({ drafted, accepted, drafter }, x) => {
    if (!drafted) bar("none", 0, x, 0.06 * depth);
    else {
      bar("drafted", drafter, x, drafted);
      if (accepted) bar("accepted", drafter, x, accepted);
    }
  });
  strip.classList.toggle("dense", rounds.length > 2 * LEAST_SHOWN); // bars too narrow for an outline
  strip.setAttribute("viewBox", `0 0 ${Math.max(LEAST_SHOWN, rounds.length)} ${1.04 * depth}`);
  strip.replaceChildren(
    ...[...paths].map(([key, d]) => {
      const [kind, drafter] = key.split(" ");
      return tint(svg("path", { class: kind, d }), Number(drafter));
    }),
  );
}

// What was decided in a round, and what came of it.
export function roundSentence({ depth, drafted, accepted, drafter, nodes, expected, prefill_tokens }, drafters) {
  const name = drafters[drafter] ?? "a drafter";
  const limit = drafted < depth ? ` of up to ${depth}` : "";
  const tree = nodes > drafted ? `, in a tree of ${count(nodes)}` : "";
  const hoped = expected === null ? "" : ` (${expected.toFixed(1)} expected)`;
  const prompt = prefill_tokens ? ` ${count(prefill_tokens)} tokens of prompts were read, too.` : "";
  if (!depth) return `No drafts.${prompt}`;
  if (!drafted) return `Up to ${depth} allowed, but no draft was found.${prompt}`;
  return `${drafted}${limit} drafted with ${name}${tree}, ${accepted} accepted${hoped}.${prompt}`;
}
