// One chart (uPlot), with a table of what its lines amount to, which is its legend as well.

import { cssColor, html, signal, useEffect, useRef, useState } from "../lib.js";
import uPlot from "../vendor/uplot.js";
import { formatTime, NOTHING } from "../format.js";
import { useWidth } from "./parts.js";
import { summaryOf } from "./series_data.js";

const HEIGHT = 170;
const NUM_COLORS = 6;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]]; // so that lines differ by more than colour

/** Grows when colours change: by the page's theme button, or by the system's setting. */
const themeChanges = signal(0);
const announce = () => {
  themeChanges.value += 1;
};
addEventListener("themechange", announce);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);

/** Neighbouring lines differ in colour and dashes, those of the same colour in their dashes. */
function styleOf(index) {
  const round = Math.floor(index / NUM_COLORS);
  return {
    colorName: `--series-${(index % NUM_COLORS) + 1}`,
    dash: DASHES[(index + round) % DASHES.length],
  };
}

export function Chart({ chart, columns, start, end }) {
  const [ref, width] = useWidth(600);
  const plot = useRef(null);
  const [hovered, setHovered] = useState(null);
  const { times, lines } = columns;
  const theme = themeChanges.value;
  const numLines = lines.length;
  useEffect(() => {
    if (!ref.current || numLines === 0) return undefined;
    plot.current = new uPlot(
      options(chart, numLines, ref.current.clientWidth, setHovered),
      [times, ...lines.map((line) => line.values)],
      ref.current,
    );
    return () => {
      plot.current.destroy();
      plot.current = null;
    };
  }, [chart.key, numLines, theme]);
  useEffect(() => {
    if (plot.current && width > 0) plot.current.setSize({ width, height: HEIGHT });
  }, [width, theme, numLines]);
  useEffect(() => {
    if (!plot.current) return;
    plot.current.batch(() => {
      plot.current.setData([times, ...lines.map((line) => line.values)], false);
      plot.current.setScale("x", { min: start, max: end });
      plot.current.setScale("y", yRange(chart, lines));
    });
  });
  return html`<section class="chart card" aria-labelledby=${`chart-${chart.key}`}>
    <h2 id=${`chart-${chart.key}`}>${chart.title}</h2>
    <div class="plot" ref=${ref} aria-hidden="true"></div>
    ${numLines === 0
      ? html`<p class="note">No figures yet.</p>`
      : html`<${Table} chart=${chart} columns=${columns} hovered=${hovered} />`}
  </section>`;
}

function yRange(chart, lines) {
  if (chart.isShare) return { min: 0, max: 1 };
  const greatest = Math.max(0, ...lines.map((line) => summaryOf(line.values)?.greatest ?? 0));
  return { min: 0, max: greatest > 0 ? greatest * 1.1 : 1 };
}

function options(chart, numLines, width, onHover) {
  const text = cssColor("--muted");
  const border = cssColor("--border");
  const axis = { stroke: text, grid: { stroke: border, width: 1 }, ticks: { stroke: border } };
  const font = "12px system-ui, sans-serif";
  return {
    width: Math.max(width, 100),
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false, setScale: false }, sync: { key: "potluck" } },
    scales: { x: { time: true, auto: false }, y: { auto: false } },
    axes: [
      { ...axis, font, values: (plot, splits) => splits.map(clockText) },
      {
        ...axis,
        font,
        size: 64,
        values: (plot, splits) => splits.map((value) => chart.format(value)),
      },
    ],
    series: [
      {},
      ...Array.from({ length: numLines }, (_, index) => {
        const style = styleOf(index);
        return {
          stroke: cssColor(style.colorName),
          dash: style.dash,
          width: 1.5,
          spanGaps: Boolean(chart.isSparse),
          points: { show: Boolean(chart.isSparse), size: 4 },
          paths: chart.isStepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
        };
      }),
    ],
    hooks: { setCursor: [(plot) => onHover(plot.cursor.idx ?? null)] },
  };
}

function clockText(time) {
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
  const isWhole = time % 60 === 0;
  const format = isWhole ? parts : { ...parts, second: "2-digit" };
  return new Date(time * 1000).toLocaleTimeString([], format);
}

function Table({ chart, columns, hovered }) {
  const { times, lines } = columns;
  const isHovered = hovered !== null && hovered < times.length;
  const text = (value) => (value === null || value === undefined ? NOTHING : chart.format(value));
  return html`<table class="chart-table">
    <thead>
      <tr>
        <th scope="col">Line</th>
        <th scope="col">${isHovered ? formatTime(times[hovered], times[hovered]) : "last"}</th>
        <th scope="col">min</th>
        <th scope="col">mean</th>
        <th scope="col">max</th>
      </tr>
    </thead>
    <tbody>
      ${lines.map((line, index) => {
        const summary = summaryOf(line.values);
        const style = styleOf(index);
        return html`<tr>
          <th scope="row">
            <svg class="key" width="26" height="8" aria-hidden="true">
              <line
                x1="0"
                y1="4"
                x2="26"
                y2="4"
                style=${{ stroke: `var(${style.colorName})` }}
                stroke-dasharray=${style.dash.join(" ")}
              />
            </svg>
            ${line.label}
          </th>
          <td>${text(isHovered ? line.values[hovered] : summary?.last)}</td>
          <td>${text(summary?.least)}</td>
          <td>${text(summary?.mean)}</td>
          <td>${text(summary?.greatest)}</td>
        </tr>`;
      })}
    </tbody>
  </table>`;
}
