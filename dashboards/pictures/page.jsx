// Draws a dashboard from its JSON with Grafana's own components, from a real Prometheus: what of it can be seen without
// a Grafana. Parameters: dashboard (file), prometheus (address), range_s, theme, width. The title becomes `drawn`.

import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dateTime, FieldConfigOptionsRegistry, FieldType, getFieldDisplayValues, ThemeContext,
  renderMarkdown, toDataFrame,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

const asked = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: asked.get('theme') ?? 'dark' } });
const width = Number(asked.get('width') ?? 1400);
const range_s = Number(asked.get('range_s') ?? 120);
const until = Date.now() / 1000;
const since = until - range_s;
const timeRange = { from: dateTime(since * 1000), to: dateTime(until * 1000), raw: { from: 'now-1h', to: 'now' } };
const ROW_PX = 38;
const BAR_S = 5; // how long an interval of bars is here

// The options of fields that Grafana's panels register; values are taken as they stand in the JSON.
const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'mappings', 'thresholds', 'color', 'links'];
const CUSTOM = [
  'axisPlacement', 'axisLabel', 'barAlignment', 'barMaxWidth', 'drawStyle', 'fillOpacity', 'gradientMode', 'hideFrom',
  'lineInterpolation', 'lineStyle', 'lineWidth', 'pointSize', 'scaleDistribution', 'showPoints', 'spanNulls', 'stacking', 'thresholdsStyle',
  'align', 'cellOptions', 'width', 'axisColorMode', 'axisBorderShow', 'axisCenteredZero', 'inspect',
];
const option = (id, isCustom) => ({
  id: isCustom ? `custom.${id}` : id, path: id, name: id, isCustom, process: (value) => value, shouldApply: () => true,
  editor: () => null, override: () => null,
});
const registry = new FieldConfigOptionsRegistry(() => [
  ...STANDARD.map((id) => option(id, false)), ...CUSTOM.map((id) => option(id, true)),
]);

const dashboard = await (await fetch(asked.get('dashboard'))).json();
const chosen = Object.fromEntries(
  dashboard.templating.list.map((each) => [each.name, asked.get(each.name) ?? (each.type === 'textbox' ? each.query ?? '' : '.*')])
);

const WINDOWS = {
  __rate_interval: '15s', __interval: `${BAR_S}s`, __interval_ms: BAR_S * 1000, __range: `${range_s}s`,
};

function filledIn(text) {
  return text?.replace(/\$\{?(\w+)\}?/g, (all, name) => WINDOWS[name] ?? chosen[name] ?? all);
}

async function frames(target) {
  const over = target.instant ? { time: until } : { start: since, end: until, step: target.interval ? BAR_S : 1 };
  const path = target.instant ? 'query' : 'query_range';
  const query = new URLSearchParams({ query: filledIn(target.expr), ...over });
  const answer = await (await fetch(`${asked.get('prometheus')}/api/v1/${path}?${query}`)).json();
  if (answer.status !== 'success') throw new Error(`${answer.error}: ${target.expr}`);
  const series = answer.data.result;
  if (target.format === 'table') return [rows(series, target)];
  return series.map(({ metric, values, value }) => {
    const samples = values ?? [value];
    const legend = target.legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => metric[label] ?? '').trim();
    const name = target.legendFormat === '__auto' ? Object.values(metric).join(' ') : legend;
    return toDataFrame({
      refId: target.refId,
      name,
      fields: [
        { name: 'Time', type: FieldType.time, values: samples.map(([at]) => at * 1000), config: {} },
        {
          name: 'Value', type: FieldType.number, values: samples.map(([, number]) => Number(number)), labels: metric,
          config: { displayNameFromDS: name || ' ' },
        },
      ],
    });
  });
}

function rows(series, target) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))];
  const columns = labels.map((label) => ({
    name: label, type: FieldType.string, config: {}, values: series.map(({ metric }) => metric[label] ?? ''),
  }));
  const values = { name: 'Value', type: FieldType.number, config: {}, values: series.map(({ value }) => Number(value[1])) };
  return toDataFrame({ refId: target.refId, fields: [...columns, values] });
}

// The one transformation that the dashboards use.
function organised(frame, transformations) {
  const organise = transformations.find(({ id }) => id === 'organize');
  if (!organise) return frame;
  const { excludeByName, indexByName, renameByName } = organise.options;
  const fields = frame.fields.filter(({ name }) => !excludeByName[name]);
  fields.sort((one, other) => (indexByName[one.name] ?? 99) - (indexByName[other.name] ?? 99));
  return toDataFrame({ fields: fields.map((field) => ({ ...field, name: renameByName[field.name] ?? field.name })) });
}

function Content({ panel, data, width, height }) {
  const options = panel.options ?? {};
  if (panel.type === 'text') {
    const text = renderMarkdown(filledIn(options.content));
    return <div className="markdown-html" style={{ padding: 8 }} dangerouslySetInnerHTML={{ __html: text }} />;
  }
  const { defaults, overrides = [] } = panel.fieldConfig;
  const drawn = applyFieldOverrides({
    data, fieldConfig: { defaults, overrides }, fieldConfigRegistry: registry, replaceVariables: filledIn, theme,
    timeZone: 'utc',
  });
  if (drawn.length === 0) return <div style={{ padding: 8 }}>{defaults.noValue}</div>;
  if (panel.type === 'timeseries') {
    const legend = { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], ...options.legend };
    return (
      <TimeSeries frames={drawn} structureRev={1} width={width} height={height} timeRange={timeRange} timeZone="utc"
        legend={{ ...legend, displayMode: 'list' }} options={options} />
    );
  }
  if (panel.type === 'table') return <TableNG data={drawn[0]} width={width} height={height} structureRev={1} />;
  if (panel.type === 'state-timeline') return <Switches frames={drawn} mappings={defaults.mappings} />;
  const values = getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions: { calcs: ['lastNotNull'], values: false }, replaceVariables: filledIn,
    theme, data: drawn, sparkline: false, timeZone: 'utc',
  });
  if (panel.type === 'stat') {
    return (
      <BigValue value={values[0].display} colorMode={options.colorMode} graphMode={options.graphMode}
        textMode="value" justifyMode="auto" width={width} height={height} theme={theme} />
    );
  }
  return values.map((value, number) => (
    <BarGauge key={number} value={value.display} field={value.field} width={width} height={height / values.length}
      display={value.view?.getFieldDisplayProcessor?.(value.colIndex)} orientation="horizontal"
      displayMode={options.displayMode} text={options.text} theme={theme} />
  ));
}

// Grafana's state timeline isn't among the published components: the same rows of colours.
function Switches({ frames, mappings }) {
  const colours = Object.fromEntries(Object.entries(mappings[0].options).map(([value, { color }]) => [value, color]));
  return frames.map((frame, number) => {
    const value = frame.fields[1];
    return (
      <div key={number} style={{ display: 'flex', height: 26, marginTop: 4, alignItems: 'center' }}>
        <div style={{ width: 190, overflow: 'hidden', fontSize: 12 }}>{value.config.displayNameFromDS}</div>
        <div style={{ position: 'relative', flex: 1, height: '100%' }}>
          {[...value.values].map((each, at) => (
            <div key={at} style={{
              position: 'absolute', height: '100%', width: `${100 / range_s + 0.1}%`,
              left: `${((frame.fields[0].values[at] / 1000 - since) / range_s) * 100}%`,
              background: theme.visualization.getColorByName(colours[each]),
            }} />
          ))}
        </div>
      </div>
    );
  });
}

class Guarded extends React.Component {
  state = {};
  static getDerivedStateFromError(error) {
    return { error };
  }
  render() {
    return this.state.error ? <pre style={{ color: 'red' }}>{String(this.state.error.stack)}</pre> : this.props.children;
  }
}

const panels = [];
for (const panel of dashboard.panels) {
  let data = [];
  for (const target of panel.targets ?? []) data.push(...(await frames(target)));
  if (panel.type === 'table') data = data.map((frame) => organised(frame, panel.transformations ?? []));
  console.log(`${panel.type}: ${panel.title}: ${data.length}`);
  panels.push({ panel, data });
}

function Page() {
  const height = Math.max(...panels.map(({ panel: { gridPos } }) => (gridPos.y + gridPos.h) * ROW_PX));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div id="page" style={{ position: 'relative', width, height, background: theme.colors.background.canvas }}>
        {panels.map(({ panel, data }, number) => {
          const at = panel.gridPos;
          const size = { width: (at.w * width) / 24 - 8, height: at.h * ROW_PX - 8 };
          return (
            <div key={number} style={{ position: 'absolute', left: (at.x * width) / 24 + 4, top: at.y * ROW_PX + 4 }}>
              {panel.type === 'row' ? (
                <h4 style={{ margin: 8 }}>{panel.title}</h4>
              ) : (
                <PanelChrome title={panel.title} description={panel.description} {...size}>
                  {(innerWidth, innerHeight) => (
                    <Guarded>
                      <Content panel={panel} data={data} width={innerWidth} height={innerHeight} />
                    </Guarded>
                  )}
                </PanelChrome>
              )}
            </div>
          );
        })}
      </div>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('app')).render(<Page />);
setTimeout(() => (document.title = 'drawn'), 2000);
