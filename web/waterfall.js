/** The stages between the end of a user's words and the agent's voice. Pure. */

/**
 * Milliseconds after the end of the user's speech, or after typed text was sent; null where a mark does not apply.
 * @typedef {Record<string, number | null>} Marks
 * @typedef {{name: string, label: string, about: string, fromMs: number, toMs: number}} Bar
 */

/** What each mark ends, in the order of a turn in which nothing overlaps. */
export const STAGES = [
  { name: "turn_end", label: "Turn", about: "until it is clear that you have finished" },
  { name: "transcript", label: "Words", about: "until what you said is text" },
  { name: "llm_first_token", label: "LLM", about: "until the first word of the answer is written" },
  { name: "audio_first", label: "Voice", about: "until the first audio of it is made" },
  { name: "heard", label: "Heard", about: "until its first audible sound is heard here" },
];

/**
 * The time that each stage adds: a bar reaches from the previous mark in time to its own.
 * @param {Marks} marks
 * @returns {Bar[]} in the order of time
 */
export function waterfall(marks) {
  const known = STAGES.filter(({ name }) => typeof marks[name] === "number");
  const ends = known.map((stage) => ({ ...stage, toMs: Math.max(0, /** @type {number} */ (marks[stage.name])) }));
  ends.sort((a, b) => a.toMs - b.toMs);
  return ends.map((stage, i) => ({ ...stage, fromMs: i ? ends[i - 1].toMs : 0 }));
}

/**
 * Combines times heard here (performance.now) with the agent's figures on one clock.
 *
 * The agent sends its figures with the first sound: both sides know that time, apart from the latency of a
 * message. A typed turn begins here and includes its way to the agent.
 */
export class TurnClock {
  /** Time of the typed turn that is not answered yet. @type {number | null} */
  #written = null;
  /** The answer: times of its typed question, if any, and of its first sound. */
  #answer = { written: /** @type {number | null} */ (null), heard: /** @type {number | null} */ (null) };
  /** @type {{turn: number, marks: Marks, at: number} | null} */
  #told = null;
  /** Whether the next sound belongs to an answer that was not heard yet. */
  #waits = false;
  /** Whether the next sound is a filler, which is no part of it. */
  #fills = false;

  /** The user has written. @param {number} at */
  write(at) {
    this.#written = at;
    this.#waits = false;
  }

  /** The agent begins an answer: later sound belongs to it. */
  answer() {
    this.#answer = { written: this.#written, heard: null };
    this.#written = this.#told = null;
    this.#waits = true;
    this.#fills = false;
  }

  /** The agent bridges the wait for its answer. */
  fill() {
    this.#fills = true;
  }

  /**
   * Sound after silence.
   * @param {number} at
   * @returns {{turn: number, marks: Marks} | null} the turn's marks, if that completes them
   */
  hear(at) {
    const isFiller = this.#fills;
    this.#fills = false;
    if (!this.#waits || isFiller) return null;
    this.#waits = false;
    this.#answer.heard = at;
    return this.#told && this.#whole(this.#told);
  }

  /**
   * The agent's figures of a turn.
   * @param {number} turn its number
   * @param {Marks} marks
   * @param {number} at
   * @returns {{turn: number, marks: Marks}} with `heard`, null while it is not known
   */
  tell(turn, marks, at) {
    this.#told = { turn, marks, at };
    return this.#whole(this.#told);
  }

  /** @param {{turn: number, marks: Marks, at: number}} told */
  #whole({ turn, marks, at }) {
    const { written, heard } = this.#answer;
    const sent = marks.audio_first ?? 0;
    const ms = heard === null ? null : heard - (written ?? at - sent);
    return { turn, marks: { ...marks, heard: ms && Math.max(ms, sent) } }; // sound cannot be heard before it is sent
  }
}
