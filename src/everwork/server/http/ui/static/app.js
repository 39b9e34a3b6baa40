// Progressive enhancement of the server's pages: live updates, times in the viewer's zone, keyboard shortcuts, confirmations.
// Every page works without it. Texts are never turned into markup here: merged HTML was escaped by the server.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const base = root.dataset.base;
  const by = (id) => document.getElementById(id);

  // Times -----------------------------------------------------------------------------------------
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const pad = (n, width = 2) => String(n).padStart(width, "0");
  const clock = (d) => `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  // If the viewer's clock is wrong, ages are computed with the server's clock.
  const off = Number(root.dataset.now) - Date.now();
  const skew = Math.abs(off) > 5000 ? off : 0;

  function distance(date) {
    const seconds = (Date.now() + skew - date) / 1000;
    const size = Math.abs(seconds);
    if (size < 1) return "now";
    const [unit, name] = UNITS.find(([unit]) => size >= unit);
    const text = `${Math.floor(size / unit)} ${name}`;
    return seconds >= 0 ? `${text} ago` : `in ${text}`;
  }

  const moment = (d) => (d.toDateString() === new Date().toDateString() ? clock(d).slice(11) : clock(d));
  const minute = (d) => moment(d).slice(0, -3);
  const LOOKS = { clock, moment, minute };

  function tell(element) {
    const date = new Date(element.dateTime);
    if (Number.isNaN(date.getTime())) return;
    const text = (LOOKS[element.dataset.as] || distance)(date);
    if (element.textContent !== text) element.textContent = text;
    if (!element.title) element.title = `${exact.format(date)}\n${element.dateTime}`;
  }

  const tellAll = () => document.querySelectorAll("time[datetime]").forEach(tell);

  // Merging ---------------------------------------------------------------------------------------
  const nameOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "");
  // A form with another action is another form, even at the same position.
  const deedOf = (node) => (node.nodeName === "FORM" ? node.getAttribute("action") : "");
  const alike = (a, b) =>
    a.nodeType === b.nodeType && a.nodeName === b.nodeName && nameOf(a) === nameOf(b) && deedOf(a) === deedOf(b);

  function mergeAttributes(old, fresh) {
    for (const { name } of [...old.attributes]) {
      // Keep what the viewer has opened or selected.
      if (!fresh.hasAttribute(name) && !["open", "data-at", "title"].includes(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  }

  function mergeNode(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old.nodeName === "TIME" && old.dateTime === fresh.dateTime) return;
    if (old.nodeName === "TIME") old.removeAttribute("title");
    mergeAttributes(old, fresh);
    mergeChildren(old, fresh);
  }

  function mergeChildren(old, fresh) {
    const named = new Map();
    for (const child of old.childNodes) if (nameOf(child)) named.set(nameOf(child), child);
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const known = nameOf(next) ? named.get(nameOf(next)) : null;
      if (known && alike(known, next)) {
        if (known === at) at = at.nextSibling;
        else old.insertBefore(known, at);
        mergeNode(known, next);
      } else if (at && !nameOf(at) && alike(at, next)) {
        const here = at;
        at = at.nextSibling;
        mergeNode(here, next);
      } else {
        old.insertBefore(next, at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  // A page is not updated while rows are selected or a dialog is open.
  const isHeld = () => document.querySelector("input[data-pick]:checked, dialog[open]") !== null;
  let kept = null;

  function mergePage(html) {
    if (isHeld()) {
      kept = html;
      pulse("paused", "Paused while you choose");
      return;
    }
    kept = null;
    const live = by("live");
    const fresh = new DOMParser().parseFromString(`<div id="live" data-live>${html}</div>`, "text/html").body.firstChild;
    mergeChildren(live, document.adoptNode(fresh));
    tellAll();
    document.dispatchEvent(new Event("everwork:merged"));
  }

  // Live ------------------------------------------------------------------------------------------
  let source = null;
  let wait = 1000;
  let timer = 0;

  function pulse(state, text) {
    const mark = by("pulse");
    if (!mark) return;
    mark.dataset.state = state;
    const words = mark.querySelector(".pulse-text");
    if (words.textContent !== text) words.textContent = text;
  }

  function trouble(text) {
    const banner = by("trouble");
    banner.hidden = !text;
    if (banner.textContent !== text) banner.textContent = text;
  }

  function follow() {
    if (source || !by("live") || document.hidden) return;
    const here = location.pathname + location.search;
    source = new EventSource(`${base}/live?path=${encodeURIComponent(here)}`);
    source.addEventListener("page", (event) => {
      wait = 1000;
      trouble("");
      pulse("live", "Live");
      mergePage(JSON.parse(event.data));
    });
    source.addEventListener("trouble", (event) => {
      trouble(JSON.parse(event.data));
      pulse("reconnecting", "Reconnecting");
    });
    source.addEventListener("crowded", (event) => {
      rest();
      pulse("paused", "Not live");
      trouble(JSON.parse(event.data));
      timer = setTimeout(follow, 30000);
    });
    source.addEventListener("again", () => {
      rest();
      follow();
    });
    source.addEventListener("ended", () => {
      rest();
      pulse("paused", "Logged out");
      trouble("Your session has expired. ");
      const link = document.createElement("a");
      // Without its own login page, the surrounding application decides who may see the page.
      link.href = root.dataset.login ? `${root.dataset.login}?next=${encodeURIComponent(here)}` : here;
      link.textContent = root.dataset.login ? "Log in again" : "Reload the page";
      by("trouble").append(link);
    });
    source.onerror = () => {
      rest();
      pulse("reconnecting", "Reconnecting");
      trouble("The server is unreachable. This page shows the last known data and reconnects automatically.");
      timer = setTimeout(follow, wait);
      wait = Math.min(wait * 2, 15000);
    };
  }

  function rest() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      rest();
      pulse("paused", "Paused");
    } else follow();
  });
  addEventListener("pagehide", rest);
  addEventListener("pageshow", follow);

  const retry = document.querySelector("[data-retry]");
  if (retry) setTimeout(() => location.reload(), Number(retry.dataset.retry) * 1000);

  // Confirmations --------------------------------------------------------------------------
  // A copy of the form is sent, because the page may have changed behind the dialog.
  function ask(question, form, submitter) {
    const dialog = by("confirm");
    const copy = document.createElement("form");
    copy.hidden = true;
    copy.method = "post";
    copy.setAttribute("action", form.getAttribute("action"));
    const chosen = submitter && submitter.name ? [[submitter.name, submitter.value]] : [];
    for (const [name, value] of [...new FormData(form), ...chosen, ["sure", "yes"]]) {
      const field = document.createElement("input");
      Object.assign(field, { type: "hidden", name, value });
      copy.append(field);
    }
    by("confirm-text").textContent = question;
    dialog.querySelector("[data-yes]").textContent = submitter ? submitter.textContent : "Confirm";
    dialog.returnValue = "no";
    dialog.onclose = () => {
      if (dialog.returnValue !== "yes") return;
      document.body.append(copy);
      HTMLFormElement.prototype.submit.call(copy);
    };
    dialog.showModal();
  }
  document.addEventListener("submit", (event) => {
    const question = (event.submitter && event.submitter.dataset.confirm) || event.target.dataset.confirm;
    if (!question) return;
    event.preventDefault();
    ask(question, event.target, event.submitter);
  });
  const automatic = document.querySelector("form[data-autosubmit]");
  if (automatic) automatic.requestSubmit();

  // Selection ---------------------------------------------------------------------------------------
  const boxes = () => [...document.querySelectorAll("input[data-pick]")];
  function count() {
    const chosen = boxes().filter((box) => box.checked).length;
    document.querySelectorAll("[data-picked]").forEach((one) => { one.textContent = String(chosen); });
    document.querySelectorAll("[data-needs-picks]").forEach((one) => { one.disabled = chosen === 0; });
    const all = document.querySelector("input[data-pick-all]");
    if (all) all.checked = chosen > 0 && chosen === boxes().length;
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-pick-all]")) boxes().forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("input[data-pick], input[data-pick-all]")) count();
    release();
    if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
  });
  document.addEventListener("everwork:merged", count);
  document.addEventListener("close", release, true);

  function release() {
    if (kept === null || isHeld()) return;
    pulse("live", "Live");
    mergePage(kept);
  }

  // Buttons -----------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.hasAttribute("data-help")) by("help").showModal();
    if (button.hasAttribute("data-theme-switch")) switchTheme();
    if (button.dataset.copy) copy(button);
  });

  function switchTheme() {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `everwork_theme=${root.dataset.theme}; path=${base || "/"}; max-age=31536000; samesite=lax`;
  }

  async function copy(button) {
    try {
      await navigator.clipboard.writeText(by(button.dataset.copy).textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(by(button.dataset.copy));
    }
  }

  // The keyboard ------------------------------------------------------------------------------------
  const rows = () => [...document.querySelectorAll("tbody tr[data-href]")];
  let isGoing = false;

  function step(by_rows) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.hasAttribute("data-at"));
    const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + by_rows))];
    all.forEach((row) => row.removeAttribute("data-at"));
    next.setAttribute("data-at", "");
    next.scrollIntoView({ block: "nearest" });
  }

  const KEYS = {
    "/": () => { const field = document.querySelector("[data-search]"); if (field) { field.focus(); field.select?.(); } },
    "?": () => by("help").showModal(),
    j: () => step(1),
    k: () => step(-1),
    x: () => { const box = document.querySelector("tr[data-at] input[data-pick]"); if (box) { box.checked = !box.checked; count(); } },
    Enter: () => { const row = document.querySelector("tr[data-at]"); if (row) location.href = row.dataset.href; },
    g: () => { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); },
  };

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (isTyping && event.key === "Escape") event.target.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && event.target.matches("a, button, input, summary")) return;
    const link = isGoing && document.querySelector(`nav a[data-go="${CSS.escape(event.key)}"]`);
    isGoing = false;
    if (link) link.click();
    else if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
    else return;
    event.preventDefault();
  });

  // Forms: times in the viewer's time zone -----------------------------------------------------------
  // A field holds a time in UTC. It is shown and typed in the viewer's zone, and sent in UTC again.
  const inField = (d) => clock(d).replace(" ", "T").slice(0, d.getSeconds() ? 19 : 16);
  const utcFields = (form) => form.querySelectorAll("input[data-utc]");

  utcFields(document).forEach((field) => {
    const date = new Date(field.dataset.utc);
    if (!Number.isNaN(date.getTime())) field.value = inField(date);
    field.dataset.shown = field.value;
    const zone = field.labels[0].querySelector("[data-zone]");
    zone.textContent = "(local time)";
    zone.title = Intl.DateTimeFormat().resolvedOptions().timeZone;
  });
  document.addEventListener("formdata", (event) => {
    utcFields(event.target).forEach((field) => {
      const date = new Date(field.value);
      if (Number.isNaN(date.getTime())) return;
      // When clocks are set back, keep the same occurrence of the repeated hour.
      const isSame = field.dataset.utc && field.value === field.dataset.shown;
      event.formData.set(field.name, isSame ? field.dataset.utc : date.toISOString().replace(":00.000Z", "Z"));
    });
  });
  // Forms: end

  tellAll();
  setInterval(() => document.querySelectorAll('time[data-as="ago"]').forEach(tell), 1000);
  count();
  follow();
})();
