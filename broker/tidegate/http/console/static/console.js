// Tidegate's console: times in the reader's zone, countdowns, dialogs, the lag chart, and what happens when a refresh fails.
(() => {
  "use strict";
  const TICK_MS = 250, CHART_MS = 10000;
  const $$ = (selector, within) => [...within.querySelectorAll(selector)];

  // -- times: UTC as they come, here in the reader's zone; UTC stays on hover
  const near = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const brisk = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
  const localise = (time) => {
    const moment = new Date(time.dateTime);
    const far = time.hasAttribute("data-full") || Math.abs(Date.now() - moment) > 86400000 / 2;
    const text = (far ? full : near).format(moment);
    if (time.textContent !== text) time.textContent = text;
  };

  // -- countdowns: the server says how much is left, so that no clock needs to be right
  const span = (ms) => {
    const s = Math.max(0, Math.ceil(ms / 1000));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  };
  const ends = new WeakMap();
  const tick = (mark) => {
    const left = mark.getAttribute("data-left-ms");
    const known = ends.get(mark);
    const end = known && known.left === left ? known : { left, at: performance.now() + Number(left) };
    ends.set(mark, end);
    const text = span(end.at - performance.now());
    if (mark.textContent !== text) mark.textContent = text;
  };

  const dress = (root) => {
    $$("time[datetime]", root).forEach(localise);
    $$("[data-left-ms]", root).forEach(tick);
  };
  new MutationObserver(() => dress(document)).observe(document.documentElement, {
    childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["datetime", "data-left-ms"],
  });
  setInterval(() => $$("[data-left-ms]", document).forEach(tick), TICK_MS);

  // -- refreshes that fail: the page keeps its contents and shows their age
  let refreshed = new Date();
  const banner = (text) => {
    const place = document.getElementById("offline");
    if (!place) return;
    place.hidden = !text;
    if (place.textContent !== text) place.textContent = text;
  };
  const old = (why) => banner(`${why} What you see is from ${near.format(refreshed)}; the page tries again.`);
  const reason = async (response) => {
    const error = new DOMParser().parseFromString(await response.clone().text(), "text/html").querySelector("h1");
    return error ? `${error.textContent}.` : `The broker answered ${response.status}.`;
  };
  document.addEventListener("htmx:before:request", (event) => {
    const asks = event.detail.ctx.sourceElement;
    const quiet = document.hidden || document.querySelector("dialog[open]");
    if (asks.id === "live" && quiet) event.preventDefault();
  });
  document.addEventListener("htmx:before:response", (event) => {
    const { raw, status } = event.detail.ctx.response;
    if (status < 400 && event.detail.ctx.sourceElement.hasAttribute("data-error")) {
      event.preventDefault();
      location.reload();
    } else if (status < 500) {
      refreshed = new Date();
      banner("");
    } else {
      event.preventDefault();
      reason(raw).then(old);
    }
  });
  document.addEventListener("htmx:error", () => old("This broker does not answer."));

  // -- dialogs, and what must be typed before a button can be pressed; a dialog is outside what a refresh replaces, so
  // what differs from row to row comes from the button's data: a row of the page's first minute may be gone, others new
  const open = (dialog, about) => {
    $$("[data-shows]", dialog).forEach((place) => {
      place.textContent = about[place.dataset.shows] ?? "";
      place.hidden = !place.textContent;
    });
    $$("[data-takes]", dialog).forEach((field) => { field.value = about[field.dataset.takes]; });
    check(dialog);
    dialog.showModal();
  };
  const check = (root) => $$("[data-must-be]", root).forEach((typed) => {
    typed.form.querySelector("[data-confirmed]").disabled = typed.value !== typed.dataset.mustBe;
  });
  document.addEventListener("click", (event) => {
    const opens = event.target.closest("[data-opens]");
    if (opens) open(document.getElementById(opens.dataset.opens), opens.dataset);
    const closes = event.target.closest("[data-closes]");
    if (closes) closes.closest("dialog").close();
  });
  document.addEventListener("input", (event) => {
    if (event.target.closest("[data-must-be]")) check(event.target.form);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-goes]")) event.target.form.requestSubmit();
  });

  // -- the lag chart
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
  const brief = (s) => s < 120 ? `${s} s` : s < 7200 ? `${+(s / 60).toFixed(1)} min` : `${+(s / 3600).toFixed(1)} h`;
  const draw = (place, samples) => {
    place.textContent = "";
    const line = { stroke: style("--line"), width: 1 };
    const axis = { stroke: style("--muted"), grid: line, ticks: { ...line, size: 6 }, border: { ...line, show: true }, font: "12px system-ui" };
    const wide = place.clientWidth > 560; // a phone shows the marks without their labels, which the legend has
    const of = (label) => wide ? { label, labelSize: 20, labelGap: 2, labelFont: "12px system-ui" } : {};
    const minutes = samples.time_s.at(-1) - samples.time_s[0] > 600;
    const series = (scale, color, dash) => ({ scale, stroke: style(color), width: 1.75, dash, points: { show: samples.time_s.length < 3 } });
    const above = (_, __, most) => [0, Math.max(most || 0, 1) * 1.08];
    new uPlot({
      width: place.clientWidth, height: 190, legend: { show: false }, cursor: { y: false }, padding: [10, 4, 0, 0],
      scales: { x: { time: true }, records: { range: above }, behind: { range: above } },
      series: [{}, series("records", "--accent"), series("behind", "--trouble", [5, 4])],
      axes: [
        { ...axis, grid: { show: false }, space: 76, size: 34, values: (_, marks) => marks.map((one) => (minutes ? brisk : near).format(new Date(one * 1000))) },
        { ...axis, ...of("records"), scale: "records", size: 50, values: (_, marks) => marks.map((one) => compact.format(one)) },
        { ...axis, ...of("oldest waits"), scale: "behind", side: 1, size: 56, grid: { show: false }, values: (_, marks) => marks.map(brief) },
      ],
    }, [samples.time_s, samples.records, samples.behind_s], place);
  };
  const chart = async (place) => {
    try {
      const answer = await fetch(place.dataset.chart);
      if (!answer.ok) return;
      const samples = await answer.json();
      const few = samples.time_s.length < 2;
      document.getElementById("no-samples").hidden = !few;
      place.hidden = few;
      if (few) return;
      place.samples = samples;
      draw(place, samples);
    } catch { /* the page's own refresh reports it */ }
  };
  const again = () => $$("[data-chart]", document).forEach((place) => place.samples && draw(place, place.samples));
  const start = () => {
    dress(document);
    check(document);
    $$("[data-chart]", document).forEach((place) => {
      chart(place);
      setInterval(() => document.hidden || chart(place), CHART_MS);
    });
    document.querySelector("[data-focus]")?.focus();
  };
  let resizing;
  addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(again, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  document.readyState === "loading" ? addEventListener("DOMContentLoaded", start) : start();
})();
