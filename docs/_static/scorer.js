// How search results are ranked. Sphinx puts this into language_data.js, which is loaded after `Search` is defined.
// Its own ranking gives every page that has all words the same score, and drops a page that lacks one of them. Here rare
// words count more than common ones, titles more than headings, headings more than text, and one heading with several of
// the words most of all. A word that no page has, such as "vs", is ignored.
var Scorer = {
  objNameMatch: 90, objPartialMatch: 1, objPrio: { 0: 5, 1: 0, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};

// Words that people type -> the words of these pages.
const ALIASES = {
  postgres: ["postgresql"], k8s: ["kubernetes"], helm: ["kubernetes"], payload: ["variables", "arguments"], permissions: ["privileges"],
  idempotency: ["dedupe"], idempotent: ["dedupe"], dlq: ["dead"], stuck: ["pending"],
  migrate: ["moving"], later: ["delay"], crash: ["killed"], oom: ["killed"], nightly: ["cron"], periodic: ["cron"],
  encryption: ["tls"], ssl: ["tls"], ttl: ["retention"], pii: ["masked"], redact: ["masked"], hide: ["masked"],
};
const PAGE_TITLE = 5, HEADING = 2, TEXT = 1, PREFIX = 0.5, COVERAGE_MIN = 0.5;
// Generated lists have every word somewhere, and index pages answer nothing.
const LESS = [[/^reference\/(api|rest-operations|rest-schemas|grpc-|commands)/, 0.6], [/(^|\/)index$/, 0.4]];

function rankedPages(words) {
  const index = Search._index, pages = index.docnames.length;
  const stemmer = new Stemmer();
  const stems = (text) => new Set(splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word)));
  const files = (table, word) => (Object.hasOwn(table, word) ? [].concat(table[word]) : []);
  const titles = index.titles.map(stems);
  const aliases = new Map(
    Object.entries(ALIASES).map(([word, others]) => [stemmer.stemWord(word), others.map((one) => stemmer.stemWord(one))]),
  );
  const found = new Map(); // Page -> word -> weight
  const note = (page, word, weight) => {
    if (!found.has(page)) found.set(page, new Map());
    const weights = found.get(page);
    weights.set(word, Math.max(weights.get(word) ?? 0, weight));
  };

  const rarity = new Map();
  for (const word of words) {
    let spelled = [word];
    if (!files(index.terms, word).length && !files(index.titleterms, word).length && word.length > 2)
      spelled = Object.keys(index.terms).filter((term) => term.startsWith(word));
    const has = new Set();
    for (const term of [...spelled, ...(aliases.get(word) ?? [])]) {
      const factor = term === word ? 1 : PREFIX;
      for (const page of files(index.terms, term)) { note(page, word, TEXT * factor); has.add(page); }
      for (const page of files(index.titleterms, term)) {
        note(page, word, (titles[page].has(term) ? PAGE_TITLE : HEADING) * factor); has.add(page);
      }
    }
    if (has.size) rarity.set(word, Math.log(1 + pages / has.size));
  }
  words = new Set(rarity.keys());

  const headings = new Map(); // Page -> [score, title, anchor] of its best heading
  for (const [title, places] of Object.entries(index.alltitles)) {
    const own = stems(title);
    const matched = [...words].filter((word) => own.has(word));
    if (!matched.length) continue;
    const sum = matched.reduce((total, word) => total + rarity.get(word), 0);
    const score = sum * matched.length * Math.sqrt(matched.length / own.size);
    for (const [page, id] of places)
      if (score > (headings.get(page)?.[0] ?? 0)) headings.set(page, [score, title, id]);
  }

  const results = [];
  for (const [page, weights] of found) {
    const coverage = weights.size / words.size;
    if (coverage <= COVERAGE_MIN && words.size > 1) continue;
    let score = headings.get(page)?.[0] ?? 0;
    for (const [word, weight] of weights) score += weight * rarity.get(word);
    score *= coverage ** 3;
    for (const [pattern, factor] of LESS) if (pattern.test(index.docnames[page])) score *= factor;
    const [, heading, id] = headings.get(page) ?? [];
    const isOther = heading !== undefined && heading !== index.titles[page];
    results.push([
      index.docnames[page], isOther ? `${index.titles[page]} > ${heading}` : index.titles[page],
      isOther && id ? `#${id}` : "", null, Math.round(score * 10), index.filenames[page], SearchResultKind.text,
    ]);
  }
  return results;
}

Search.performTermsSearch = (words) => rankedPages(words);
// Summaries are fetched, which browsers refuse to pages from a disk.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
