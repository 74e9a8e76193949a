"""How the page looks: light and dark, wide and narrow, without anything from elsewhere."""

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1f2328; --muted: #59636e; --grid: #d1d9e0; --box: #f6f8fa;
  --model: #0969da; --server: #818b98; --good: #1a7f37; --warn: #9a6700;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0d1117; --ink: #e6edf3; --muted: #9198a1; --grid: #3d444d; --box: #151b23;
    --model: #4493f8; --server: #848d97; --good: #3fb950; --warn: #d29922;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; overflow-wrap: break-word;
}
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 {
  font-size: 1.2rem; line-height: 1.3; margin: 2.8rem 0 .6rem; padding-top: .9rem;
  border-top: 1px solid var(--grid);
}
p { margin: .6rem 0; max-width: 46rem; }
.lead { font-size: 1.1rem; }
.note { color: var(--muted); font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .75rem; margin: 1.2rem 0 0; }
.tile { background: var(--box); border: 1px solid var(--grid); border-radius: .5rem; padding: .7rem .9rem; }
.tile b { display: block; font-size: 1.35rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: .88rem; }
figure { margin: 1rem 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 27rem; max-width: 44rem; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { fill: var(--ink); }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; min-width: 60%; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--grid); }
th { color: var(--muted); font-weight: 500; }
.figure { text-align: right; font-variant-numeric: tabular-nums; padding-left: .4rem; }
td strong { white-space: nowrap; }
td small { color: var(--muted); font-size: .85em; white-space: nowrap; }
.good { color: var(--good); font-weight: 600; }
.warnings { border-left: .25rem solid var(--warn); padding-left: 1rem; }
ul { padding-left: 1.2rem; max-width: 46rem; }
li { margin: .3rem 0; }
dt { font-weight: 600; margin-top: .9rem; }
dd { margin: .1rem 0 0; max-width: 46rem; }
summary { cursor: pointer; margin: .6rem 0; }
pre {
  background: var(--box); border: 1px solid var(--grid); border-radius: .5rem; padding: .8rem 1rem;
  overflow-x: auto; font-size: .85rem;
}
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
td code { overflow-wrap: anywhere; font-size: .8em; }
@media (max-width: 36rem) { body { padding: 1rem .8rem 3rem; } table { font-size: .85rem; min-width: 100%; } }
@media print { .scroll { overflow: visible; } }
"""
"""The page's style sheet. The variables carry the names of the drawings' colours."""
