/** One call: its turns, their times, and the time to silence after an interruption. */

import { Conversation, fills } from "./conversation.js";
import { TurnClock } from "./waterfall.js";

/**
 * @typedef {import("./conversation.js").Turn} Turn
 * @typedef {import("./waterfall.js").Marks} Marks
 */

const MOST_NUMBERED = 20; // turns whose figures may still change

export class Dialogue {
  conversation = new Conversation();
  /** The conversation changed. */
  onchange = () => {};
  /** New figures of the time to an answer. @type {(turn: Turn, marks: Marks) => void} */
  onmarks = () => {};
  /** An interrupted turn is silent here, `ms` after the interruption. @type {(turn: Turn, ms: number) => void} */
  onsilence = () => {};
  /** A message of the agent to the user. @type {(text: string) => void} */
  onnotice = () => {};
  /** The agent could not do something. @type {(text: string) => void} */
  onerror = () => {};
  #call;
  #sound;
  #clock = new TurnClock();
  /** Turns by the agent's number. @type {Map<number, Turn>} */
  #numbered = new Map();
  /** Number of the agent's last turn, and of its last turn with sound. */
  #number = 0;
  #heard = 0;

  /**
   * @param {import("./call.js").Call} call
   * @param {import("./agent_sound.js").AgentSound} sound
   */
  constructor(call, sound) {
    this.#call = call;
    this.#sound = sound;
    call.onmessage = (type, data) => void this.#receive(type, data, performance.now());
    sound.onsound = (at) => this.#hear(at);
  }

  /**
   * A typed turn of the user.
   * @param {string} text
   * @param {number} since when it was sent, on performance.now's clock
   */
  write(text, since) {
    this.#interrupt(since);
    this.#clock.write(since);
    this.conversation.type(text);
    this.#call.write(text);
    this.onchange();
  }

  /** The call ended. */
  end() {
    this.conversation.end();
    this.onchange();
  }

  /**
   * @param {string} type
   * @param {any} data
   * @param {number} at
   */
  async #receive(type, data, at) {
    let released = null;
    // The agent holds its answer at the first voice, and decides later whether it is an interruption.
    if (type === "user-started-speaking" || type === "bot-interrupted") {
      this.#interrupt(at);
      released = this.#sound.release();
    }
    this.conversation.receive(type, data);
    if (type === "bot-llm-started") this.#clock.answer();
    else if (type === "bot-output" && fills(data)) this.#clock.fill();
    else if (type === "error" || type === "error-response") this.onerror(data.error);
    else if (type === "server-message" && data.kind === "notice") this.onnotice(data.text);
    else if (type === "server-message" && data.kind === "turn") this.#tell(data, at);
    this.onchange();
    await released;
  }

  /** @param {number} since */
  #interrupt(since) {
    const turn = this.conversation.spoken;
    if (!turn || turn.over) return;
    const wasHeard = this.#sound.lively;
    const ms = this.#sound.hush() - since;
    if (!wasHeard) return;
    this.#call.tell("silent", { context: this.#number, ms: Math.round(ms) });
    this.onsilence(turn, ms);
  }

  /** @param {number} at */
  #hear(at) {
    const whole = this.#clock.hear(at);
    if (whole) this.#show(whole);
  }

  /**
   * @param {{turn: number, marks: Marks}} told
   * @param {number} at
   */
  #tell({ turn, marks }, at) {
    const { spoken } = this.conversation;
    if (!spoken) return;
    if (!this.#numbered.has(turn)) this.#numbered.set(turn, spoken);
    if (this.#numbered.size > MOST_NUMBERED) this.#numbered.delete(this.#numbered.keys().next().value ?? 0);
    this.#number = turn;
    this.#show(this.#clock.tell(turn, marks, at));
  }

  /** @param {{turn: number, marks: Marks}} whole */
  #show({ turn, marks }) {
    const answer = this.#numbered.get(turn);
    if (answer) this.onmarks(answer, marks);
    if (marks.heard === null || turn === this.#heard) return;
    this.#heard = turn;
    this.#call.tell("heard", { context: turn, ms: Math.round(marks.heard) });
  }
}
