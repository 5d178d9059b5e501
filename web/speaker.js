/** Speaks one turn at a time: sends text, plays audio, and on a stop mutes first and cancels second. */

import { SAMPLE_RATE } from "./audio.js";
import { FirstSound } from "./first_sound.js";
import { Recording } from "./recording.js";
import { Transcript } from "./transcript.js";

const ACK_MS = 250;
const METER_MS = 200;
// The node sends a second ahead. Where less is here, and a pong waits behind the rest, the network is slow.
const LOW_MS = 300;
const LATE_MS = 700;

/**
 * @typedef {import("./client.js").Session} Session
 * @typedef {import("./client.js").Context} Context
 * @typedef {import("./player.js").Sink} Sink
 *
 * @typedef {object} Turn
 * @property {Context} context
 * @property {Sink} sink of the session that it began in
 * @property {Options} options
 * @property {Transcript} transcript
 * @property {Recording} recording
 * @property {{start: () => void, stop: () => void} | null} source writes the text
 * @property {number} playedMs
 * @property {boolean} sounded some of it was heard
 * @property {FirstSound} first
 * @property {boolean} whole all of its sound has arrived
 * @property {boolean} lost its connection was lost before the node had sent all of it
 * @property {boolean} over no more of it will be heard
 *
 * @typedef {{voice?: string, language?: string, speed?: number, instructions?: string}} Options
 *
 * @typedef {object} Outcome
 * @property {string} heard
 * @property {string} unheard
 * @property {number} playedMs
 * @property {boolean} cut
 * @property {Options} options
 * @property {Recording | null} recording null where the page has no sound of it
 * @property {boolean} shown whether its words are those of the last turn
 */

export class Speaker {
  /** A turn has begun or ended. */
  onchange = () => {};
  /** A heard turn is complete, and the node has sent its last message about it. */
  onoutcome = (/** @type {Outcome} */ _outcome) => {};
  /** The node answered with an error. */
  onerror = (/** @type {import("./client.js").ErrorMessage} */ _error) => {};
  /** The session, or the turn's connection, was lost, and all that had arrived was heard: the rest is missing. */
  onlost = () => {};
  /** The network brings the sound more slowly than it is spoken. */
  onslow = () => {};
  /** After a stop during sound: ms until it was silent. */
  onsilence = (/** @type {number} */ _ms) => {};
  #said;
  #wave;
  #meters;
  /** @type {Session | null} */
  #session = null;
  /** @type {Sink | null} */
  #sink = null;
  /** The turn on the stage; over or not. @type {Turn | null} */
  #turn = null;
  /** Turns the node still has something to say about. @type {Map<Context, Turn>} */
  #turns = new Map();
  #ackedAt = 0;
  #meteredAt = 0;
  /** When the ping left that has no answer yet; 0: none. */
  #pingedAt = 0;
  /** When the last sound came. */
  #arrivedAt = 0;
  /** @type {ReturnType<typeof setInterval>} */
  #ticks = 0;

  /**
   * @param {HTMLElement} said the current turn's text
   * @param {import("./wave.js").Wave} wave
   * @param {import("./meters.js").Meters} meters
   */
  constructor(said, wave, meters) {
    this.#said = said;
    this.#wave = wave;
    this.#meters = meters;
  }

  /** Whether there is something to interrupt. */
  get speaking() {
    return this.#turn !== null && !this.#turn.over;
  }

  /** The turn that takes more text. */
  get writable() {
    return this.speaking && !this.#turn?.context.ended ? this.#turn : null;
  }

  /** Of what is heard. */
  get analyser() {
    return (this.speaking ? this.#turn?.sink : this.#sink)?.analyser ?? null;
  }

  /**
   * Use this session from now on.
   * @param {Session} session
   * @param {Sink} sink
   */
  attach(session, sink) {
    this.#session = session;
    this.#sink = sink;
    session.onmessage = (message, context) => this.#receive(message, context);
    session.onaudio = (chunk, context) => {
      this.#arrivedAt = performance.now();
      this.#wave.push(chunk.pcm, chunk.firstSample);
      const readyMs = ((chunk.firstSample + chunk.pcm.length) / SAMPLE_RATE) * 1000;
      const turn = this.#turns.get(context);
      if (turn) {
        turn.first.receive(chunk.pcm, chunk.firstSample, this.#arrivedAt);
        // Measured here, until the node sends its own figure at the end.
        if (chunk.firstSample === 0) this.#meterNode(turn, this.#arrivedAt - (context.sentAt ?? this.#arrivedAt));
        turn.transcript.receive(readyMs);
        this.#meterAudible(turn);
        turn.whole = Boolean(chunk.flags & 1);
        turn.recording.add(chunk.pcm);
      }
      sink.push(chunk);
    };
    sink.onfirst = (at) => this.#heardFirst(at);
    sink.onended = () => this.#heardAll();
    sink.oncolumn = (peak, brightness) => this.#wave.hear(peak, brightness);
  }

  /** The session is gone: its turns get no more messages. What has arrived of the current one is played to its end. */
  detach() {
    const sink = this.#sink;
    this.#session = this.#sink = null;
    const current = this.speaking ? this.#turn : null;
    for (const turn of this.#turns.values()) {
      turn.source?.stop();
      turn.lost = !turn.context.done;
      turn.context.done = true;
      if (turn !== current) this.#close(turn);
    }
    if (sink && current?.sink === sink) sink.finish();
    else sink?.close();
  }

  /**
   * Begin a turn, interrupting the one before.
   * @param {Options} options
   */
  begin(options) {
    if (!this.#session || !this.#sink) throw new Error("not attached to a session");
    this.stop();
    const context = this.#session.open(options);
    const transcript = new Transcript(this.#said);
    /** @type {Turn} */
    const turn = {
      context,
      sink: this.#sink,
      options,
      transcript,
      recording: new Recording(),
      source: null,
      playedMs: 0,
      sounded: false,
      first: new FirstSound(),
      whole: false,
      lost: false,
      over: false,
    };
    this.#turn = turn;
    this.#turns.set(context, turn);
    this.#sink.begin(context);
    this.#pingedAt = 0;
    this.#meters.reset();
    this.#wave.begin();
    // A timer besides animation frames: a hidden tab gets no frames, but plays.
    this.#ticks = setInterval(() => this.#tick(), ACK_MS);
    requestAnimationFrame(() => this.#animate(turn));
    this.onchange();
    return turn;
  }

  /**
   * More text of the current turn.
   * @param {string} text
   */
  write(text) {
    const turn = this.#turn;
    if (!turn) return;
    turn.transcript.append(text);
    turn.context.append(text);
    turn.first.write(turn.transcript.chars, performance.now());
  }

  /**
   * Barge in: mute first, then cancel.
   * @param {number} since when it was asked for, on performance.now's clock
   */
  stop(since = performance.now()) {
    const turn = this.#turn;
    if (!turn || turn.over) return;
    this.#tick();
    const silence = turn.sink.silence();
    turn.context.cancel(turn.sink.columns ? null : turn.playedMs);
    this.#break(turn);
    silence.then((at) => {
      if (turn.sounded && at !== null && at - since >= 1) this.onsilence(at - since);
    });
  }

  /** @param {Turn} turn its rest will not be heard */
  #break(turn) {
    turn.source?.stop();
    if (turn.sounded) turn.transcript.interrupt(null);
    else turn.transcript.clear();
    this.#wave.cut();
    this.#end(turn);
  }

  /** @param {Turn} turn */
  #end(turn) {
    turn.over = true;
    clearInterval(this.#ticks);
    this.#wave.rest();
    this.#meters.set("bufferMs", null);
    if (turn.sink !== this.#sink) turn.sink.close();
    if (turn.context.done) this.#close(turn);
    this.onchange();
  }

  /** @param {Turn} turn */
  #close(turn) {
    if (!this.#turns.delete(turn.context)) return;
    if (!turn.sounded) return;
    const { transcript, playedMs, options, recording } = turn;
    const [heard, unheard] = transcript.parts();
    const shown = turn === this.#turn;
    this.onoutcome({ heard, unheard, playedMs, cut: transcript.cut, options, recording, shown });
  }

  /** @param {Turn} turn */
  #animate(turn) {
    if (turn.over) return;
    this.#tick();
    requestAnimationFrame(() => this.#animate(turn));
  }

  #tick() {
    const turn = this.#turn;
    if (!turn || turn.over) return;
    const { sink } = turn;
    const position = sink.position({ wordsMs: turn.transcript.wordsMs });
    if (!position || turn.over) return;
    turn.playedMs = position.playedMs;
    turn.transcript.play(position.playedMs);
    this.#wave.seek(position.playedMs);
    const now = performance.now();
    if (now - this.#meteredAt >= METER_MS) {
      this.#meteredAt = now;
      this.#meters.set("bufferMs", sink.columns ? null : position.bufferedMs);
      this.#meters.set("underruns", sink.underruns);
      if (!sink.columns) this.#watch(position.bufferedMs < LOW_MS && !turn.whole, now);
    }
    if (now - this.#ackedAt >= ACK_MS && !sink.columns) {
      this.#ackedAt = now;
      turn.context.acknowledge(position.playedMs);
    }
  }

  /**
   * Find out whether the network is why little sound is here. Where none comes, it is lost, not slow.
   * @param {boolean} isLow
   * @param {number} now
   */
  #watch(isLow, now) {
    if (!isLow) {
      this.#pingedAt = 0;
    } else if (!this.#pingedAt) {
      this.#pingedAt = now;
      this.#session?.send({ type: "ping", t: Math.round(now) });
    } else if (now - this.#pingedAt > LATE_MS && this.#arrivedAt > this.#pingedAt) {
      this.onslow();
    }
  }

  /** @param {number} at */
  #heardFirst(at) {
    const turn = this.#turn;
    if (!turn || turn.over || turn.context.sentAt === null) return;
    turn.sounded = true;
    this.#meters.set("clientTtfaMs", at - turn.context.sentAt);
    turn.first.play(at);
    // A track tells its first sound only when it is audible.
    if (turn.sink.columns) this.#meters.set("audibleMs", at - turn.context.sentAt);
    else this.#meterAudible(turn);
  }

  /**
   * The node's own time to its first sound stands apart from the wait for the words that the speech begins with.
   * @param {Turn} turn
   * @param {number} ms from the first text to the first sound
   */
  #meterNode(turn, ms) {
    const waitMs = turn.first.waitMs ?? 0;
    this.#meters.set("waitMs", waitMs);
    this.#meters.set("serverTtfaMs", Math.max(0, ms - waitMs));
  }

  /** @param {Turn} turn */
  #meterAudible(turn) {
    const { audibleAt } = turn.first;
    if (turn !== this.#turn || turn.over || audibleAt === null || turn.context.sentAt === null) return;
    this.#meters.set("audibleMs", audibleAt - turn.context.sentAt);
  }

  #heardAll() {
    const turn = this.#turn;
    if (!turn || turn.over) return;
    this.#tick();
    if (turn.lost) {
      this.#break(turn);
      return this.onlost();
    }
    turn.transcript.finish();
    this.#end(turn);
  }

  /**
   * @param {any} message
   * @param {Context | undefined} context
   */
  #receive(message, context) {
    const turn = context && this.#turns.get(context);
    if (message.type === "error") this.#fail(message, turn);
    // A ping to a node that was lost has no answer.
    if (message.type === "pong" || message.type === "session.created") this.#pingedAt = 0;
    if (!turn) return;
    if (message.type === "words" && !turn.over) {
      turn.transcript.time(message.words);
      if (message.kind === "aligned") turn.first.tell(message.words.at(-1)?.char_end ?? 0);
    } else if (message.type === "context.cancelled") {
      turn.transcript.interrupt(message.heard_text ?? null);
      turn.sink.released();
    } else if (message.type === "context.done") {
      this.#done(turn, message);
    }
  }

  /**
   * @param {import("./client.js").ErrorMessage} error
   * @param {Turn | undefined} turn
   */
  #fail(error, turn) {
    if (error.code === "connection_lost" && turn && !turn.over) {
      turn.source?.stop();
      turn.lost = true;
      turn.sink.finish();
    } else if (turn?.context.done) {
      if (turn.over) this.#close(turn);
      else this.#break(turn);
    } else if (error.code === "unknown_context") {
      return; // the answer to the cancel of a refused one
    }
    this.onerror(error);
  }

  /**
   * @param {Turn} turn
   * @param {{reason: string, audio_ms: number | null, ttfa_ms: number | null, rtf: number | null}} done
   */
  #done(turn, done) {
    if (turn === this.#turn) {
      if (done.ttfa_ms !== null) this.#meterNode(turn, done.ttfa_ms);
      this.#meters.set("rtf", done.rtf);
      this.#meters.set("audioMs", done.audio_ms);
    }
    if (turn.over) return this.#close(turn);
    if (turn.lost) return; // what is here is played to its end
    if (done.reason === "error" || done.reason === "cancelled") {
      turn.sink.silence();
      turn.sink.released();
      this.#break(turn);
    } else if (!done.audio_ms) {
      this.#heardAll();
    }
  }
}
