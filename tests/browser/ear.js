/** Listens to the page's output every few milliseconds: how loud, and at which frequency. */
window.ear = {
  WINDOW: 256, // samples: the last 10 ms of what the analyser holds
  LOUD: 0.01, // RMS, -40 dBFS
  /** @type {{at: number, rms: number, hz: number}[]} */
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
    if (!analyser) return ear.heard.push({ at, rms: 0, hz: 0 });
    const samples = new Float32Array(analyser.fftSize);
    const levels = new Float32Array(analyser.frequencyBinCount);
    analyser.getFloatTimeDomainData(samples);
    analyser.getFloatFrequencyData(levels);
    const recent = samples.subarray(-ear.WINDOW);
    const rms = Math.sqrt(recent.reduce((sum, x) => sum + x * x, 0) / recent.length);
    const loudest = levels.indexOf(Math.max(...levels));
    ear.heard.push({ at, rms, hz: (loudest * analyser.context.sampleRate) / analyser.fftSize });
  },

  get loud() {
    return (ear.heard.at(-1)?.rms ?? 0) > ear.LOUD;
  },

  /** Milliseconds from the last key press to the last sound after it. */
  lingered() {
    const loud = ear.heard.filter(({ at, rms }) => at > ear.pressedAt && rms > ear.LOUD);
    return loud.length ? loud.at(-1).at - ear.pressedAt : 0;
  },

  /** Frequencies heard since then, of whatever was loud. @param {number} at */
  since(at) {
    return ear.heard.filter((moment) => moment.at >= at && moment.rms > ear.LOUD).map(({ hz }) => hz);
  },
};
ear.start();
