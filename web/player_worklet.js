/**
 * On the audio thread: a player of PCM chunks, and a probe that observes another stream.
 *
 * Times are in seconds of the audio context; `process` handles 128 samples a call and never allocates while it plays.
 */

const REPORT_CALLS = 4; // about 21 ms at 24 kHz
const SILENCE = 0.002; // -54 dBFS, what a decoder makes of coded silence

/**
 * Plays chunks in the order they came.
 *
 * In:  {type: "push", no, pcm: Int16Array, last: boolean} | {type: "clear"} | {type: "finish"} | {type: "start", samples}
 * Out: {type: "first", no, time} | {type: "position", no, played, buffered, time} | {type: "dry", no, time}
 *      | {type: "ended", no} (no is 0: nothing was there to play) | {type: "silent", time}
 */
class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    // Chunks not yet played: {no, pcm, last, at}, `at` being the next sample of it.
    this.queue = [];
    this.buffered = 0;
    // Context that plays, and its samples played; 0 is none.
    this.no = 0;
    this.played = 0;
    // Sound starts once this much is buffered, or this long after its first sample came.
    this.start = 0;
    this.filling = true;
    this.filled = 0;
    this.clearing = false;
    this.calls = 0;
    this.port.onmessage = ({ data }) => this.receive(data);
  }

  receive(message) {
    if (message.type === "push") {
      this.queue.push({ no: message.no, pcm: message.pcm, last: message.last, at: 0 });
      this.buffered += message.pcm.length;
    } else if (message.type === "clear") {
      this.clearing = true;
    } else if (message.type === "finish") {
      if (this.queue.length) this.queue.at(-1).last = true;
      else this.end();
    } else if (message.type === "start") {
      this.start = message.samples;
    }
  }

  process(_inputs, [[output]]) {
    if (this.filling) this.fill(output.length);
    if (!this.filling) this.play(output);
    if (this.clearing) this.clear(output);
    if (++this.calls % REPORT_CALLS === 0 && this.no) this.report();
    return true;
  }

  fill(samples) {
    if (!this.queue.length) return;
    this.filled += samples;
    if (this.buffered >= this.start || this.filled >= this.start || this.queue.at(-1).last) {
      this.filling = false;
      this.filled = 0;
    }
  }

  play(output) {
    let written = 0;
    while (written < output.length && this.queue.length) {
      const chunk = this.queue[0];
      if (chunk.no !== this.no) this.begin(chunk.no, written);
      const count = Math.min(output.length - written, chunk.pcm.length - chunk.at);
      for (let i = 0; i < count; i++) output[written + i] = chunk.pcm[chunk.at + i] / 32768;
      chunk.at += count;
      written += count;
      this.played += count;
      this.buffered -= count;
      if (chunk.at === chunk.pcm.length) {
        this.queue.shift();
        if (chunk.last) this.end();
      }
    }
    if (written === output.length) return;
    this.filling = true;
    if (this.no) this.port.postMessage({ type: "dry", no: this.no, time: currentTime + written / sampleRate });
  }

  begin(no, written) {
    this.no = no;
    this.played = 0;
    this.port.postMessage({ type: "first", no, time: currentTime + written / sampleRate });
  }

  end() {
    this.report();
    this.port.postMessage({ type: "ended", no: this.no });
    this.no = 0;
  }

  /** Fade out this call's samples, because a hard cut clicks, and drop the rest. */
  clear(output) {
    for (let i = 0; i < output.length; i++) output[i] *= 1 - (i + 1) / output.length;
    if (this.no) this.report();
    this.queue.length = 0;
    this.buffered = 0;
    this.no = 0;
    this.filling = true;
    this.filled = 0;
    this.clearing = false;
    this.port.postMessage({ type: "silent", time: currentTime + output.length / sampleRate });
  }

  report() {
    const { no, played, buffered } = this;
    this.port.postMessage({ type: "position", no, played, buffered, time: currentTime });
  }
}

/**
 * Observes a stream's loudness and spectrum.
 *
 * In:  {type: "column", samples}
 * Out: {type: "column", peak, crossings, time} for each `samples` samples, `time` being their end
 *      | {type: "level", loud: boolean, time} at each change between sound and silence
 */
class Probe extends AudioWorkletProcessor {
  constructor() {
    super();
    this.samples = 480;
    this.seen = 0;
    this.peak = 0;
    this.crossings = 0;
    this.previous = 0;
    this.loud = false;
    this.port.onmessage = ({ data }) => (this.samples = data.samples);
  }

  process([[input]]) {
    if (!input) {
      this.level(false);
      return true;
    }
    let loudest = 0;
    for (let i = 0; i < input.length; i++) {
      const sample = input[i];
      loudest = Math.max(loudest, Math.abs(sample));
      if (sample < 0 !== this.previous < 0) this.crossings++;
      this.previous = sample;
    }
    this.level(loudest > SILENCE);
    this.peak = Math.max(this.peak, loudest);
    this.seen += input.length;
    if (this.seen >= this.samples) this.column(input.length);
    return true;
  }

  level(loud) {
    if (loud === this.loud) return;
    this.loud = loud;
    this.port.postMessage({ type: "level", loud, time: currentTime });
  }

  column(length) {
    const { peak, crossings } = this;
    this.port.postMessage({ type: "column", peak, crossings, time: currentTime + length / sampleRate });
    this.seen -= this.samples;
    this.peak = 0;
    this.crossings = 0;
  }
}

registerProcessor("agent-tts-player", Player);
registerProcessor("agent-tts-probe", Probe);
