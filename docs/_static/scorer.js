// Guides and the reference come before design pages, which explain why Godwit works as it does.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    if (/^design\//.test(page)) return score - 100;
    if (/^(guide|reference)\/|^(tutorial|why|howto)$/.test(page)) return score + 10;
    return score;
  },

  // Names of the API first; then titles; then words of the text.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
