// A prompt goes in, words come out tinted by who guessed them; and the same again without guessing, for comparison.

import { call, eventsOf } from "./api.js";
import { $, el, say } from "./dom.js";
import { count, percent, seconds as duration, times } from "./format.js";

const EXAMPLES = [
  ["Story", "Tell me a story about a small fox."],
  ["Repeat a list", "Repeat this list: apple, banana, cherry, mango, peach, plum, grape, melon."],
  ["Code", "Write a Python function that adds two numbers."],
  ["JSON", "Write a JSON object with the fields name, age and city."],
  ["Summary", "Summarize: Tom went to the park with his dog. They played with a ball. It began to rain, so they ran home."],
];

export class Playground {
  #feed;
  #abort = null;

  constructor(feed) {
    this.#feed = feed;
    $("examples").replaceChildren(
      ...EXAMPLES.map(([name, prompt]) => el("button", { type: "button", onclick: () => this.#use(prompt) }, name)),
    );
    $("play-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.run();
    });
    $("play-stop").addEventListener("click", () => this.#abort?.abort());
    $("play-race").addEventListener("click", () => this.#race());
  }

  // The server has said what it serves.
  open() {
    const { policies, default_policy: standard, drafters } = this.#feed.server;
    const select = $("play-policy");
    const before = select.value;
    select.replaceChildren(...policies.map((name) => el("option", { value: name }, name === standard ? `${name} (default)` : name)));
    select.value = policies.includes(before) ? before : standard;
    $("drafter-legend").replaceChildren(
      ...drafters.map((name, i) => el("li", {}, el("i", { cls: `swatch d${i % 3}`, "aria-hidden": "true" }), `guessed by ${name}`)),
      el("li", {}, el("i", { cls: "swatch own", "aria-hidden": "true" }), "the model's own"),
    );
    $("play-race").disabled = !drafters.length;
  }

  #use(prompt) {
    $("prompt").value = prompt;
    $("prompt").focus();
  }

  async run() {
    $("race").hidden = true;
    await this.#busy(async (signal) => this.#sum(await this.#answer(signal, {})));
  }

  async #race() {
    $("race").hidden = true;
    await this.#busy(async (signal) => {
      // One seed for both: then even sampled texts have to be the same.
      const seed = Math.floor(Math.random() * 2 ** 31);
      say($("play-summary"), "Without speculation ...");
      const plain = await this.#answer(signal, { seed, adaptspec: { max_depth: 0 } });
      say($("play-summary"), "With speculation ...");
      const fast = await this.#answer(signal, { seed });
      this.#sum(fast);
      this.#compare(fast, plain);
    });
  }

  async #busy(work) {
    if (this.#abort) return;
    this.#abort = new AbortController();
    $("play-stop").hidden = false;
    for (const id of ["play-run", "play-race"]) $(id).disabled = true;
    try {
      await work(this.#abort.signal);
    } catch (error) {
      const stopped = error.name === "AbortError";
      $("play-output").append(el("span", { cls: stopped ? "stopped" : "error" }, stopped ? " (stopped)" : error.message));
      say($("play-summary"), "");
    } finally {
      this.#abort = null;
      $("play-stop").hidden = true;
      $("play-run").disabled = false;
      $("play-race").disabled = !this.#feed.server?.drafters.length;
    }
  }

  async #answer(signal, extra) {
    const output = $("play-output");
    output.replaceChildren();
    const body = {
      messages: [{ role: "user", content: $("prompt").value }],
      max_tokens: Number($("play-tokens").value) || 160,
      temperature: Number($("play-temperature").value) || 0,
      stream: true,
      stream_options: { include_usage: true },
      ...extra,
      adaptspec: { policy: $("play-policy").value || undefined, provenance: true, ...extra.adaptspec },
    };
    const began = performance.now();
    const response = await call("v1/chat/completions", { json: body, signal });
    const result = { text: "", guessed: 0, first: null, seconds: 0, metrics: null, usage: null, id: "" };
    for await (const { data } of eventsOf(response)) {
      if (data === "[DONE]") break;
      const told = JSON.parse(data);
      if (told.error) throw new Error(told.error.message);
      result.id = told.id;
      result.usage = told.usage ?? result.usage;
      result.metrics = told.metrics?.speculative_decoding ?? result.metrics;
      for (const piece of told.adaptspec?.provenance ?? []) this.#show(output, piece, result);
      if (result.text && result.first === null) result.first = (performance.now() - began) / 1000;
      result.seconds = (performance.now() - began) / 1000;
    }
    return result;
  }

  #show(output, { text, drafter }, result) {
    const follows = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
    const which = this.#feed.server?.drafters.indexOf(drafter) ?? -1;
    const cls = drafter === null ? "piece own" : `piece d${Math.max(0, which) % 3}`;
    output.append(el("span", { cls, title: drafter === null ? "the model's own" : `guessed by ${drafter}` }, text));
    result.text += text;
    if (drafter !== null) result.guessed += 1;
    if (follows) output.scrollTop = output.scrollHeight;
  }

  #sum({ usage, metrics, guessed, seconds }) {
    if (!usage || !metrics) return;
    const passes = metrics.adaptspec.rounds + 1; // the first token comes with the prompt
    const tokens = usage.completion_tokens;
    const drafts = metrics.num_draft_tokens;
    const wide = metrics.adaptspec.nodes > drafts ? `, ${count(metrics.adaptspec.nodes)} with their alternatives` : "";
    const kept = drafts ? `, ${count(guessed)} of ${count(drafts)} guesses kept (${percent(metrics.num_accepted_draft_tokens / drafts)})${wide}` : ", nothing was guessed";
    say($("play-summary"), `${count(tokens)} tokens in ${count(passes)} passes of the large model${kept}; ${duration(seconds)}.`);
  }

  #compare(fast, plain) {
    const longest = Math.max(fast.seconds, plain.seconds);
    const bar = (name, one, cls) => el(
      "div",
      { cls: "one" },
      el("span", {}, name),
      el("div", { cls: "track" }, el("div", { cls: `fill ${cls}`, width: `${(100 * one.seconds) / longest}%` })),
      el("span", {}, `${duration(one.seconds)}, ${count(one.metrics.adaptspec.rounds + 1)} passes`),
    );
    const same = fast.text === plain.text;
    // Speculation does not change how long the prompt takes, so what is compared is the time after the first token.
    const decoding = (one) => one.seconds - (one.first ?? 0);
    const gain = decoding(fast) > 0 ? decoding(plain) / decoding(fast) : 0;
    const speed = gain ? `${times(gain)} as fast after the first token (${times(plain.seconds / fast.seconds)} with the prompt)` : "Too short to compare";
    const verdict = `${speed}, and the text is ${same ? "the same, letter for letter" : "another one (near-ties of two words, or a lossy policy)"}.`;
    $("race").replaceChildren(bar("speculating", fast, ""), bar("plain", plain, "plain"), el("p", { cls: "small" }, verdict));
    $("race").hidden = false;
  }
}
