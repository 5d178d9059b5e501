/** Turns of a conversation from an agent's RTVI messages, each with the text that was heard. Pure. */

const MOST_TURNS = 60;
const MOST_SKIPPED = 40; // unspoken characters of a text, such as markdown and link targets

/**
 * @typedef {object} Turn
 * @property {number} id in the order of the turns
 * @property {"user" | "agent"} who
 * @property {string} text as far as it is known
 * @property {string} filler what the agent said before it, to bridge a wait; no part of the answer
 * @property {string} interim preliminary recognition; may change
 * @property {boolean} typed written instead of spoken
 * @property {number} heard UTF-16 units of `text` that were heard
 * @property {number} since start of the last heard word in `text`
 * @property {boolean} written the text is complete
 * @property {boolean} over no more of it will be heard
 * @property {boolean} cut it was interrupted
 *
 * @typedef {"heard" | "now" | "coming" | "cut" | "interim" | "filler"} Is
 * @typedef {"listening" | "hearing" | "thinking" | "speaking"} Phase what the agent is doing
 */

export class Conversation {
  /** @type {Turn[]} */
  turns = [];
  /** @type {Phase} */
  phase = "listening";
  #ids = 0;
  /** The user's turn that is not answered yet. @type {Turn | null} */
  #user = null;
  /** The agent's turn that goes on. @type {Turn | null} */
  #agent = null;
  /** What was heard of it before a silence that may be its end, or only a pause. @type {Partial<Turn> | null} */
  #pause = null;
  /** Words of its filler that were not heard yet. */
  #filler = "";
  /** A turn that was cut, while the agent has not said what it counts as heard. @type {Turn | null} */
  #unsettled = null;

  /** The agent's last turn, over or not. */
  get spoken() {
    return this.turns.findLast(({ who }) => who === "agent") ?? null;
  }

  /**
   * The user has written something.
   * @param {string} text
   */
  type(text) {
    this.#cut();
    this.#drop();
    this.#user = Object.assign(this.#open("user"), { text, typed: true, written: true, over: true });
    this.phase = "thinking";
  }

  /**
   * @param {string} type of an RTVI message
   * @param {any} data
   */
  receive(type, data) {
    switch (type) {
      case "user-started-speaking":
        if (!this.#user || this.#user.typed) this.#user = this.#open("user");
        this.phase = "hearing";
        break;
      case "user-stopped-speaking":
        if (this.phase === "hearing") this.phase = "thinking";
        break;
      case "user-transcription":
        this.#transcribe(data);
        break;
      case "bot-llm-started":
        this.#answer();
        break;
      case "bot-llm-text":
        this.#write(data.text);
        break;
      case "bot-llm-stopped":
        if (this.#agent) this.#agent.written = true;
        break;
      case "bot-started-speaking":
        this.phase = "speaking";
        break;
      case "bot-output":
        if (fills(data) && this.#agent) this.#agent.filler = this.#filler = data.text;
        break;
      case "bot-tts-text":
        this.#hear(data.text);
        break;
      case "bot-stopped-speaking":
        this.#rest();
        break;
      case "bot-interrupted":
        this.#cut();
        break;
      case "server-message":
        if (data.kind === "interrupted") this.#settle(data.heard, data.unheard);
        else if (data.kind === "resumed") this.#resume();
    }
  }

  /** The call ended: nothing more will be heard. */
  end() {
    this.#cut();
    this.#drop();
    this.#user = null;
    this.phase = "listening";
  }

  /** @param {{text: string, final: boolean}} transcription of a part of what the user says */
  #transcribe({ text, final }) {
    if (!this.#user || this.#user.typed) this.#user = this.#open("user");
    if (!final) {
      this.#user.interim = text;
      return;
    }
    this.#user.text = joined(this.#user.text, text);
    this.#user.interim = "";
  }

  /** An LLM may write in several parts with function calls between them: they are one turn. */
  #answer() {
    this.#drop();
    if (this.#user || this.#agent?.over) this.#cut();
    this.#user = this.#unsettled = null;
    this.#agent ??= this.#open("agent");
    this.#agent.written = false;
    if (this.phase !== "speaking") this.phase = "thinking";
  }

  /** @param {string} text */
  #write(text) {
    if (this.#agent) this.#agent.text += text;
  }

  /**
   * A word was heard. A word that is not found near the last one counts as heard without a position; a word beyond the
   * text (a greeting that no LLM wrote) extends the text.
   * @param {string} word
   */
  #hear(word) {
    const said = word.trim();
    if (!said) return;
    const filled = this.#filler.indexOf(said);
    this.#filler = filled < 0 ? "" : this.#filler.slice(filled + said.length);
    if (filled >= 0) return;
    if (!this.#agent && this.spoken?.cut) return; // sent before its turn was cut
    const turn = (this.#agent ??= Object.assign(this.#open("agent"), { written: true }));
    if (this.#pause) Object.assign(turn, this.#pause);
    this.#pause = null;
    const at = turn.text.indexOf(said, turn.heard);
    if (at >= 0 && at - turn.heard <= MOST_SKIPPED) {
      turn.since = at;
      turn.heard = at + said.length;
    } else if (!turn.text.slice(turn.heard).trim()) {
      turn.since = turn.text ? turn.text.length + 1 : 0;
      turn.text = joined(turn.text, said);
      turn.heard = turn.text.length;
    }
  }

  /**
   * Silence after a complete text ends the turn, unless more of its words are heard. Silence while the user speaks may
   * be a hold: the turn may go on.
   */
  #rest() {
    if (this.phase === "speaking") this.phase = "listening";
    const turn = this.#agent;
    if (!turn?.written || turn.over) return;
    if (this.#user && /[\p{L}\p{N}]/u.test(turn.text.slice(turn.heard))) return;
    this.#pause = { heard: turn.heard, since: turn.since, over: false };
    turn.heard = turn.text.length;
    turn.over = true;
  }

  #cut() {
    const turn = this.#agent;
    if (!turn) return;
    this.#agent = this.#pause = null;
    this.#filler = "";
    this.#unsettled = turn;
    if (turn.over) return;
    turn.over = turn.cut = true;
    if (!turn.text && !turn.filler) this.#remove(turn);
  }

  /**
   * The heard text as the agent counts it; final.
   * @param {string} heard
   * @param {string} unheard
   */
  #settle(heard, unheard) {
    this.#cut();
    const turn = this.#unsettled;
    this.#unsettled = null;
    if (!turn) return;
    if (!turn.text.startsWith(heard)) turn.text = joined(heard, unheard);
    turn.heard = heard.length;
    turn.cut = true;
  }

  /** No interruption: the agent goes on. */
  #resume() {
    this.#drop();
    this.phase = "speaking";
    const turn = this.spoken;
    if (!turn?.cut) return;
    turn.over = turn.cut = false;
    this.#agent = turn;
    this.#unsettled = null;
  }

  /** Drop a user's turn without recognised words. */
  #drop() {
    const turn = this.#user;
    if (!turn || turn.text || turn.interim) return;
    this.#remove(turn);
    this.#user = null;
  }

  /** @param {Turn} turn */
  #remove(turn) {
    this.turns.splice(this.turns.indexOf(turn), 1);
  }

  /** @param {"user" | "agent"} who */
  #open(who) {
    /** @type {Turn} */
    const turn = {
      id: ++this.#ids,
      who,
      text: "",
      filler: "",
      interim: "",
      typed: false,
      heard: 0,
      since: 0,
      written: false,
      over: false,
      cut: false,
    };
    this.turns.push(turn);
    if (this.turns.length > MOST_TURNS) this.turns.shift();
    return turn;
  }
}

/**
 * A turn's text in non-empty pieces.
 * @param {Turn} turn
 * @returns {{is: Is, text: string}[]}
 */
export function pieces({ who, text, filler, interim, heard, since, over, cut }) {
  /** @type {{is: Is, text: string}[]} */
  let all;
  if (who === "user") {
    all = [
      { is: "heard", text },
      { is: "interim", text: interim && text ? ` ${interim}` : interim },
    ];
  } else {
    const end = cut ? heard + text.slice(heard).search(/\S|$/) : heard; // do not strike out spaces
    const now = over ? end : since;
    all = [
      { is: "filler", text: filler && text ? `${filler} ` : filler },
      { is: "heard", text: text.slice(0, now) },
      { is: "now", text: text.slice(now, end) },
      { is: cut ? "cut" : "coming", text: text.slice(end) },
    ];
  }
  return all.filter((piece) => piece.text);
}

/**
 * Whether a message says that a filler begins.
 * @param {any} data of a message of the type bot-output
 */
export function fills({ output_type: kind, spoken_status: status }) {
  return kind === "filler" && status === "new";
}

/**
 * @param {string} head
 * @param {string} tail
 */
function joined(head, tail) {
  return head && tail && !/\s$/.test(head) && !/^\s/.test(tail) ? `${head} ${tail}` : head + tail;
}
