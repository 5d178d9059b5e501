/** Where the time went between the end of a user's words and the agent's voice. Pure. */

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
  { name: "audio_first", label: "Voice", about: "until the first sound of it is made" },
  { name: "heard", label: "Way", about: "until that sound is heard here" },
];

/**
 * What each stage adds: a bar reaches from the mark before it to its own, whichever came first.
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
 * Puts what is seen on the page and what the agent measured on one clock. The moments are performance.now's.
 *
 * The end of a turn is known to both sides: the agent says when it has seen it, and how long after the user's last
 * sound that was. So the way there and back is not in the figures of a spoken turn; it is in those of a typed one.
 */
export class TurnClock {
  /** @type {{at: number, typed: boolean} | null} */
  #asked = null;
  #answered = false;
  /** @type {number | null} */
  #heardAt = null;
  /** @type {{turn: number, marks: Marks} | null} */
  #told = null;

  /** The user has finished. @param {number} at @param {boolean} typed */
  ask(at, typed) {
    this.#asked = { at, typed };
    this.#answered = false;
    this.#heardAt = null;
    this.#told = null;
  }

  /** The agent begins to answer: sound from now on is of the answer. */
  answer() {
    this.#answered = true;
  }

  /**
   * Sound after silence.
   * @param {number} at
   * @returns {{turn: number, marks: Marks} | null} the turn's marks, if that completes them
   */
  hear(at) {
    if (!this.#asked || !this.#answered || this.#heardAt !== null) return null;
    this.#heardAt = at;
    return this.#told && this.#whole();
  }

  /**
   * The agent's figures of a turn.
   * @param {number} turn its number
   * @param {Marks} marks
   * @returns {{turn: number, marks: Marks}} with `heard`, null while it is not known
   */
  tell(turn, marks) {
    this.#told = { turn, marks };
    return this.#whole();
  }

  #whole() {
    const { turn, marks } = /** @type {{turn: number, marks: Marks}} */ (this.#told);
    return { turn, marks: { ...marks, heard: this.#heard(marks) } };
  }

  /** @param {Marks} marks */
  #heard({ turn_end, audio_first }) {
    if (this.#heardAt === null || !this.#asked) return null;
    const { at, typed } = this.#asked;
    const heard = this.#heardAt - at + (typed ? 0 : (turn_end ?? 0));
    return Math.max(heard, audio_first ?? 0); // no sound is heard before it is made
  }
}
