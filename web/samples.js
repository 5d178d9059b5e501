/** Texts to try, as a language model writes them. */

/** @type {{name: string, languages: string[], text: string}[]} */
export const SAMPLES = [
  {
    name: "A helpful answer",
    languages: ["en"],
    text:
      "Of course, I can help with that. Your train to Hamburg leaves at 10:42 from platform seven, and you will need " +
      "about twelve minutes to get there. Shall I book a seat by the window? You can interrupt me at any time.",
  },
  {
    name: "Markdown and a list",
    languages: ["en"],
    text:
      "## Three things to know\n\n1. **Text comes in** word by word, so the voice starts before the answer is written.\n" +
      "2. *Interrupting* costs nothing: unheard audio was never made.\n3. See [the protocol](https://example.com/protocol) " +
      "for the rest, e.g. `context.cancel`. 🎉\n",
  },
  {
    name: "Deutsch",
    languages: ["de"],
    text:
      "Guten Tag! Ihre Bestellung ist heute Morgen verschickt worden und kommt voraussichtlich am Donnerstag zwischen " +
      "neun und elf Uhr bei Ihnen an. Möchten Sie, dass der Fahrer vorher anruft?",
  },
  {
    name: "中文",
    languages: ["zh", "cmn"],
    text: "你好，很高兴为您服务。您的航班将于明天上午九点起飞，请提前两个小时到达机场。还有什么可以帮您的吗？",
  },
  {
    name: "Español",
    languages: ["es"],
    text: "Claro que sí. He encontrado tres mesas libres para esta noche: a las ocho, a las nueve y a las diez y media. ¿Cuál prefiere?",
  },
  {
    name: "A long story to interrupt",
    languages: ["en"],
    text:
      "Once, in a harbour town where the fog came in every evening like a guest who never knocks, there lived a keeper " +
      "of clocks. She kept forty-one of them, and no two agreed. Visitors would ask her what time it was, and she would " +
      "answer, quite seriously, that it depended on who was waiting. For a sailor it was always too late. For a child it " +
      "was never yet. For herself, she said, it was exactly now, and had been for as long as she could remember.",
  },
];
