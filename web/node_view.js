/** The node at work, for its operator: figures of all clients, from the node's metrics. */

import { ApiError } from "./api.js";
import { make } from "./dom.js";

const LOOK_MS = 2_000;
const WINDOW_MS = 60_000; // that rates and percentiles are of

/**
 * @typedef {{name: string, labels: Record<string, string>, value: number}} Sample
 * @typedef {{at: number, samples: Sample[]}} Look `at`: when, ms
 */

/**
 * The samples of a page in Prometheus' text format.
 * @param {string} text
 * @returns {Sample[]}
 */
export function parse(text) {
  return [...text.matchAll(/^(\w+)(?:\{(.*)\})? (\S+)/gm)].map(([, name, labels, value]) => ({
    name,
    labels: Object.fromEntries([...(labels ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, of]) => [key, of])),
    value: Number(value.replace("Inf", "Infinity")),
  }));
}

/**
 * Sum of the samples of a name, by a label.
 * @param {Sample[]} samples
 * @param {string} name
 * @param {string} label
 * @returns {Map<string, number>}
 */
function by(samples, name, label) {
  const sums = new Map();
  for (const sample of samples) {
    const key = sample.labels[label] ?? "";
    if (sample.name === name) sums.set(key, (sums.get(key) ?? 0) + sample.value);
  }
  return sums;
}

/** @param {Sample[]} samples @param {string} name */
const sum = (samples, name) => by(samples, name, "").get("") ?? 0;

/**
 * How much a counter has grown; one that fell has begun anew.
 * @param {number} before
 * @param {number} now
 */
const grown = (before, now) => (now < before ? now : now - before);

/**
 * What there is to show.
 * @param {Sample[]} before the first look of the window
 * @param {Sample[]} now
 */
export function figuresOf(before, now) {
  const recent = (/** @type {string} */ name) => grown(sum(before, name), sum(now, name));
  const old = by(before, "agent_tts_ttfa_seconds_bucket", "le");
  const buckets = [...by(now, "agent_tts_ttfa_seconds_bucket", "le")]
    .map(([le, count]) => ({ le: Number(le.replace("+Inf", "Infinity")), count: grown(old.get(le) ?? 0, count) }))
    .sort((a, b) => a.le - b.le);
  const all = buckets.at(-1)?.count ?? 0;
  /** Upper bound of the bucket of a quantile, ms; null without any. @param {number} q */
  const firstAudio = (q) => (all ? (buckets.find(({ count }) => count >= q * all)?.le ?? 0) * 1_000 : null);
  const of = (/** @type {string} */ name, /** @type {string} */ label) => by(now, `agent_tts_${name}`, label);
  /** What each engine, or key, that has the first metric has of all. @type {(label: string, ...names: string[]) => [string, ...number[]][]} */
  const rows = (label, ...names) => {
    const columns = names.map((name) => of(`${label}_${name}`, label));
    return [...columns[0].keys()].map((row) => [row, ...columns.map((column) => column.get(row) ?? 0)]);
  };
  const engines = rows("engine", "up", "slots_used", "slots", "contexts_queued", "starts_total");
  const keys = rows("key", "sessions", "characters_total", "audio_seconds_total", "refused_total");
  return {
    streams: sum(now, "agent_tts_slots_used"),
    slots: sum(now, "agent_tts_slots"),
    waiting: sum(now, "agent_tts_contexts_queued"),
    firstAudioMs: firstAudio(0.5),
    slowAudioMs: firstAudio(0.95),
    underrunS: recent("agent_tts_underrun_seconds_total"),
    sessions: sum(now, "agent_tts_sessions"),
    refused: recent("agent_tts_refused_total"),
    engines: engines.map(([number, up, used, slots, waiting, starts]) => ({ number, up: up > 0, used, slots, waiting, starts })),
    keys: keys.map(([name, sessions, characters, seconds, refused]) => ({ name, sessions, characters, seconds, refused })),
  };
}

const count = (/** @type {number} */ value) => value.toLocaleString("en");
/** @param {number | null} ms */
const atMost = (ms) => (ms === null ? "–" : ms === Infinity ? "over 5 s" : `≤ ${Math.round(ms)} ms`);
/** @param {number} s */
const duration = (s) => (s < 600 ? `${s.toFixed(1)} s` : `${count(Math.round(s / 60))} min`);

export class NodeView {
  #api;
  #root;
  /** Those of the last minute, oldest first. @type {Look[]} */
  #looks = [];
  /** @type {ReturnType<typeof setTimeout>} */
  #next = 0;

  /**
   * @param {import("./api.js").Api} api
   * @param {HTMLDetailsElement} root with a `dl`, and a `tbody` for engines and for keys; looks while it is open
   */
  constructor(api, root) {
    this.#api = api;
    this.#root = root;
    root.addEventListener("toggle", () => this.#look());
    document.addEventListener("visibilitychange", () => this.#look());
  }

  /** Show it if this page's key is an operator's. */
  async offer() {
    try {
      this.#root.hidden = !(await this.#api.operates());
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#root.hidden = true;
    }
  }

  async #look() {
    clearTimeout(this.#next);
    if (!this.#root.open || document.hidden) return;
    try {
      const look = { at: performance.now(), samples: parse(await this.#api.metrics()) };
      clearTimeout(this.#next); // another look may have begun meanwhile
      this.#looks = [...this.#looks.filter(({ at }) => at > look.at - WINDOW_MS), look];
      this.#show(figuresOf(this.#looks[0].samples, look.samples));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
    this.#next = setTimeout(() => this.#look(), LOOK_MS);
  }

  /** @param {ReturnType<typeof figuresOf>} figures */
  #show(figures) {
    /** @type {Record<string, string>} */
    const texts = {
      streams: `${count(figures.streams)} of ${count(figures.slots)}`,
      waiting: count(figures.waiting),
      firstAudio: atMost(figures.firstAudioMs),
      slowAudio: atMost(figures.slowAudioMs),
      underruns: duration(figures.underrunS),
      sessions: count(figures.sessions),
      refused: count(figures.refused),
    };
    for (const cell of /** @type {NodeListOf<HTMLElement>} */ (this.#root.querySelectorAll("[data-figure]"))) {
      cell.textContent = texts[/** @type {string} */ (cell.dataset.figure)];
    }
    const { engines, keys } = figures;
    this.#fill("engines", engines, ({ number, up, used, slots, waiting, starts }) => [
      number,
      up ? "up" : "down",
      `${count(used)} of ${count(slots)}`,
      count(waiting),
      count(starts),
    ]);
    this.#fill("keys", keys, ({ name, sessions, characters, seconds, refused }) => [
      name,
      count(sessions),
      count(characters),
      duration(seconds),
      count(refused),
    ]);
  }

  /**
   * @template T
   * @param {string} name of a `tbody`
   * @param {T[]} items
   * @param {(item: T) => string[]} cells the first is the row's heading
   */
  #fill(name, items, cells) {
    const rows = items.map((item) => {
      const [heading, ...others] = cells(item);
      return make("tr", {}, make("th", { scope: "row" }, heading), ...others.map((text) => make("td", {}, text)));
    });
    /** @type {HTMLElement} */ (this.#root.querySelector(`[data-rows=${name}]`)).replaceChildren(...rows);
  }
}
