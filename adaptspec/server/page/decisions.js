// What the policies chose: depths, who drafted, reasons, and figures by task. All shares come from the feed.

import { $, count, el, fixed, keyed, percent, say, showSpeedup, swatch } from "./dom.js";
import { shownFigures } from "./speed.js";

export class Decisions {
  #feed;

  constructor(feed) {
    this.#feed = feed;
  }

  draw() {
    const { figures } = shownFigures(this.#feed.summary);
    $("decisions").hidden = !figures;
    if (!figures) return;
    this.#depths(figures);
    this.#drafters(figures);
    this.#reasons(figures);
    this.#tasks(figures);
  }

  #depths({ depths }) {
    const entries = Object.entries(depths).map(([key, share]) => ({ key, share }));
    const most = Math.max(...Object.values(depths));
    entries.sort((a, b) => a.key - b.key);
    keyed(
      $("depths"),
      entries,
      ({ key }) => el("li", {}, el("span"), el("i"), el("b", {}, key)),
      (node, { share }) => {
        say(node.children[0], percent(share));
        node.children[1].style.height = `${(80 * share) / most}%`;
      },
    );
  }

  #drafters({ drafters }) {
    const names = this.#feed.server.drafters;
    if (!names.length) {
      $("drafters").replaceChildren(el("li", {}, "No drafter is loaded: every round is plain decoding."));
      return;
    }
    const entries = names.map((key, index) => ({ key, index, figures: drafters[key] }));
    keyed(
      $("drafters"),
      entries,
      ({ key, index }) => el("li", {}, swatch(index), el("span", {}, key), el("span")),
      (node, { figures }) => say(node.lastChild, figures?.drafted ? `${percent(figures.acceptance_rate)} of ${count(figures.drafted)} accepted` : "not used"),
    );
  }

  #reasons({ reasons }) {
    const words = new Map([...this.#feed.reasons.values()].map((reason) => [reason.name, reason.words]));
    const entries = Object.entries(reasons).map(([key, share]) => ({ key, share }));
    entries.sort((a, b) => b.share - a.share);
    keyed(
      $("reasons"),
      entries,
      ({ key }) => el("li", {}, el("div", { class: "label" }, el("b", {}, key), el("span")), el("div", { class: "track" }, el("i")), el("p", { class: "muted small" }, words.get(key) ?? "")),
      (node, { share }) => {
        say(node.children[0].lastChild, percent(share));
        node.children[1].firstChild.style.width = `${100 * share}%`;
      },
    );
  }

  #tasks({ tasks }) {
    const entries = Object.entries(tasks).map(([key, figures]) => ({ key, figures }));
    entries.sort((a, b) => b.figures.emitted - a.figures.emitted);
    keyed(
      $("tasks"),
      entries,
      ({ key }) => el("tr", {}, el("td", {}, key), ...Array.from({ length: 6 }, () => el("td"))),
      (node, { figures }) => {
        const values = [count(figures.emitted), percent(figures.drafted_share), percent(figures.acceptance_rate), fixed(figures.tokens_per_pass, 2), fixed(figures.entropy, 2)];
        values.forEach((value, i) => say(node.children[i + 1], value));
        showSpeedup(node.lastChild, figures.speedup, figures.drafted, false);
        if (!figures.speedup) say(node.lastChild, "–");
      },
    );
  }
}
