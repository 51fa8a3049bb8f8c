// A prompt goes in, words come out, tinted by the drafter that proposed them. A race sends it twice: with speculation and
// without, one after the other, since two requests in one batch would slow each other down.

import { $, count, el, percent, plural, say, speed, swatch, times, tint } from "./dom.js";
import { call, eventsOf } from "./feed.js";

const OFFER = "One click sends this prompt twice, with speculation and without. You see both speeds, and that the text is the same.";
const NO_DRAFTER = "This server has no drafter, so there is nothing to race.";
const LEAST_TOKENS = 8; // in which a speed can be measured
const NOISE = 0.02; // of a race's factor
const EXAMPLES = [
  ["Copy a text", "Repeat this text word for word:\n\nThe old lighthouse stood on a cliff above the sea. Every night its lamp turned slowly, and sailors far away knew that the rocks were near. One winter the keeper fell ill, and his daughter climbed the stairs to light the lamp herself."],
  ["Table to JSON", "Convert this table to JSON:\n\nname,age,city\nAnna,31,Rome\nBen,25,Oslo\nCara,47,Lima\nDan,52,Paris\nEva,38,Cairo"],
  ["Rewrite code", "Rewrite this function with type hints:\n\ndef total_price(prices, tax):\n    total = 0\n    for price in prices:\n        total = total + price + price * tax\n    return total"],
  ["Summary", "Summarize: Tom went to the park with his dog. They played with a ball. It began to rain, so they ran home."],
  ["Story", "Tell me a story about a small fox."],
];

// One answer: its words and what is known of its speed.
class Lane {
  text = "";
  tokens = 0;
  metrics = null;
  drafters = new Set(); // that proposed words of the text
  #began = 0;
  #first = null;
  #last = null;
  #status = el("p", { class: "status" });
  #output = el("div", { class: "output", tabindex: "0", role: "region" });

  constructor(name) {
    this.name = name;
    this.#output.setAttribute("aria-label", name);
    say(this.#status, "waits for its turn");
    this.node = el("section", {}, el("h3", {}, name), this.#status, this.#output);
  }

  // Tokens per second after the first token: speculation does not change how long a prompt takes. NaN: too few tokens.
  get rate() {
    return this.tokens >= LEAST_TOKENS ? (this.tokens - 1) / (this.#last - this.#first) : NaN;
  }

  async run(body, drafters, signal) {
    this.#began = performance.now() / 1000;
    const clock = setInterval(() => this.#tick(), 100);
    this.#tick();
    try {
      const response = await call("v1/chat/completions", { json: body, signal });
      for await (const { data } of eventsOf(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        for (const piece of chunk.adaptspec?.provenance ?? []) this.#show(piece, drafters);
        this.tokens = chunk.usage?.completion_tokens ?? this.tokens;
        this.metrics = chunk.metrics?.speculative_decoding ?? this.metrics;
      }
      say(this.#status, Number.isNaN(this.rate) ? plural(this.tokens, "token") : `${speed(this.rate)} tokens/s`);
    } catch (error) {
      const stopped = error.name === "AbortError";
      say(this.#status, stopped ? "stopped" : "failed");
      if (!stopped) this.#output.append(el("span", { class: "error" }, error.message));
      throw error;
    } finally {
      clearInterval(clock);
    }
  }

  #tick() {
    const elapsed = performance.now() / 1000 - this.#began;
    say(this.#status, `${this.#first === null ? "reading" : "writing"}, ${elapsed.toFixed(1)} s`);
  }

  #show({ text, drafter }, drafters) {
    const output = this.#output;
    const follows = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
    const piece = el("span", { title: drafter === null ? "the model's own" : `drafted with ${drafter}` }, text);
    if (drafter !== null) {
      tint(piece, drafters.indexOf(drafter)).className = "drafted";
      this.drafters.add(drafter);
    }
    output.append(piece);
    this.text += text;
    this.#last = performance.now() / 1000;
    this.#first ??= this.#last;
    if (follows) output.scrollTop = output.scrollHeight;
  }

  // Marks the words from a position of the text on.
  mark(position) {
    let end = 0;
    for (const piece of this.#output.children) {
      end += piece.textContent.length;
      piece.classList.toggle("differs", end > position);
    }
  }
}

export class Playground {
  #feed;
  #abort = null;

  constructor(feed) {
    this.#feed = feed;
    $("prompt").value = EXAMPLES[0][1];
    $("examples").replaceChildren(...EXAMPLES.map(([name, prompt]) => el("button", { type: "button", onclick: () => this.#use(prompt) }, name)));
    $("play-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#run();
    });
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.#run();
    });
    $("play-stop").addEventListener("click", () => this.#abort?.abort());
    $("play-race").addEventListener("click", () => this.#race());
  }

  open() {
    const { policies, default_policy: standard, drafters } = this.#feed.server;
    const select = $("play-policy");
    const before = select.value;
    select.replaceChildren(...policies.map((name) => el("option", { value: name }, name === standard ? `${name} (default)` : name)));
    select.value = policies.includes(before) ? before : standard;
    if (!$("lanes").children.length) say($("play-verdict"), drafters.length ? OFFER : NO_DRAFTER);
    this.#enable();
  }

  #use(prompt) {
    $("prompt").value = prompt;
    $("prompt").focus();
  }

  #enable() {
    const { drafters } = this.#feed.server;
    $("play-stop").hidden = this.#abort === null;
    $("play-run").hidden = this.#abort !== null;
    $("play-race").disabled = this.#abort !== null || !drafters.length;
  }

  #body(seed, options) {
    return {
      messages: [{ role: "user", content: $("prompt").value }],
      max_tokens: Number($("play-tokens").value) || 128,
      temperature: Number($("play-temperature").value) || 0,
      seed, // the same for both sides of a race: then even sampled texts must be equal
      stream: true,
      stream_options: { include_usage: true },
      adaptspec: { policy: $("play-policy").value, provenance: true, ...options },
    };
  }

  async #start(lanes, work) {
    if (this.#abort) return;
    this.#abort = new AbortController();
    $("lanes").replaceChildren(...lanes.map((lane) => lane.node));
    $("play-legend").replaceChildren();
    say($("play-verdict"), "");
    this.#enable();
    try {
      await work(this.#abort.signal);
      this.#legend(lanes);
    } catch (error) {
      if (error.name !== "AbortError") say($("play-verdict"), "The request failed.");
    } finally {
      this.#abort = null;
      this.#enable();
    }
  }

  #run() {
    const lane = new Lane(`With ${$("play-policy").value}`);
    this.#start([lane], async (signal) => {
      await lane.run(this.#body(undefined, {}), this.#feed.server.drafters, signal);
      say($("play-verdict"), `${plural(lane.tokens, "token")} in ${count(lane.metrics.adaptspec.rounds + 1)} passes of the model; ${guesses(lane.metrics)}.`);
    });
  }

  // With speculation first: a drafter that learns from earlier answers must not have seen this one.
  #race() {
    const fast = new Lane(`With ${$("play-policy").value}`);
    const plain = new Lane("Without speculation");
    const seed = Math.floor(Math.random() * 2 ** 31);
    this.#start([fast, plain], async (signal) => {
      const { drafters } = this.#feed.server;
      const [first, second] = [this.#body(seed, {}), this.#body(seed, { max_depth: 0 })];
      await fast.run(first, drafters, signal);
      await plain.run(second, drafters, signal);
      this.#judge(fast, plain);
    });
  }

  #judge(fast, plain) {
    const drafts = fast.metrics.num_draft_tokens;
    const gain = fast.rate / plain.rate;
    const factor = Number.isFinite(gain) ? `${times(gain)} as fast` : "Too short to compare";
    const judgement = !drafts || Math.abs(gain - 1) < NOISE ? "" : gain > 1 ? "good" : "bad";
    let text = "The texts are the same, letter for letter.";
    if (fast.text !== plain.text) {
      let same = 0;
      while (fast.text[same] === plain.text[same]) same += 1;
      for (const lane of [fast, plain]) lane.mark(same);
      const why = fast.metrics.adaptspec.lossy ? "this policy may change texts" : "it happens where two tokens are nearly equally likely";
      text = `The texts differ where they are marked: ${why}.`;
    }
    $("play-verdict").replaceChildren(el("b", { class: judgement }, factor), `: ${guesses(fast.metrics)}. ${text}`);
  }

  // The drafters that occurred.
  #legend(lanes) {
    const all = this.#feed.server.drafters;
    const used = all.filter((name) => lanes.some((lane) => lane.drafters.has(name)));
    $("play-legend").replaceChildren(
      ...used.map((name) => el("li", {}, swatch(all.indexOf(name)), `drafted with ${name}`)),
      el("li", {}, el("i", { class: "swatch own", "aria-hidden": "true" }), "the model's own"),
    );
  }
}

function guesses({ num_draft_tokens: drafted, num_accepted_draft_tokens: accepted }) {
  return drafted ? `${count(accepted)} of ${count(drafted)} drafted tokens accepted (${percent(accepted / drafted)})` : "nothing was drafted";
}
