/** Records loudness and frequency of the page's output every few milliseconds. */
window.ear = {
  WINDOW: 256, // samples: the last 10 ms of the analyser's buffer
  LOUD: 0.01, // RMS, -40 dBFS
  /** Loudness played (`rms`) and before muting. @type {{at: number, rms: number, arriving: number, hz: number}[]} */
  heard: [],
  pressedAt: 0,

  start() {
    addEventListener("keydown", (event) => (ear.pressedAt = event.timeStamp), true);
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      const last = ear.heard.at(-1);
      if (!last || performance.now() - last.at >= 4) ear.listen();
      setTimeout(() => port2.postMessage(0), 4);
    };
    port2.postMessage(0);
  },

  listen() {
    const { analyser } = agentTts;
    const at = performance.now();
    if (!analyser) return ear.heard.push({ at, rms: 0, arriving: 0, hz: 0 });
    const samples = new Float32Array(analyser.fftSize);
    analyser.getFloatTimeDomainData(samples);
    const recent = samples.subarray(-ear.WINDOW);
    const arriving = Math.sqrt(recent.reduce((sum, x) => sum + x * x, 0) / recent.length);
    // A media track plays through an audio element; the analyser is in front of it.
    const isMuted = [...document.querySelectorAll("audio")].some((audio) => audio.srcObject && audio.muted);
    const rms = isMuted ? 0 : arriving;
    ear.heard.push({ at, rms, arriving, hz: ear.pitch(recent) * analyser.context.sampleRate });
  },

  /** Frequency of a tone, cycles a sample: from its first upward crossing of zero to its last. @param {Float32Array} tone */
  pitch(tone) {
    const ups = [];
    for (let i = 1; i < tone.length; i++) {
      if (tone[i - 1] < 0 && tone[i] >= 0) ups.push(i - tone[i] / (tone[i] - tone[i - 1]));
    }
    return ups.length > 1 ? (ups.length - 1) / (ups.at(-1) - ups[0]) : 0;
  },

  get loud() {
    return (ear.heard.at(-1)?.rms ?? 0) > ear.LOUD;
  },

  /** Milliseconds from the last key press to the last sound after it. @param {"rms" | "arriving"} what */
  lingered(what) {
    const loud = ear.heard.filter((moment) => moment.at > ear.pressedAt && moment[what] > ear.LOUD);
    return loud.length ? loud.at(-1).at - ear.pressedAt : 0;
  },

  /** Frequencies of loud sound since a time. @param {number} at */
  since(at) {
    return ear.heard.filter((moment) => moment.at >= at && moment.rms > ear.LOUD).map(({ hz }) => hz);
  },
};
ear.start();
