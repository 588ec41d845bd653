"""What the move cannot know, in the tree that was moved."""
import re
from pathlib import Path
def sub(path,*pairs):
    p=Path(path); s=p.read_text()
    for a,b in pairs:
        if a not in s: print('NOT FOUND',path,a[:60]); continue
        s=s.replace(a,b)
    p.write_text(s)
sub('src/attnscope/__init__.py',('_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)\n','''_load, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules={"kernels", "models", "results", "testing"},
    submod_attrs={
        "comparison.contrasts": ["contrasts"],
        "comparison.diff": ["diff"],
        "detection.roles": ["roles"],
        "explanation.explain": ["explain"],
        "intervention.intervene": ["intervene"],
        "intervention.patch": ["patch"],
        "lineage.align": ["align"],
        "lineage.compare": ["compare"],
        "lineage.score": ["score"],
        "lineage.train": ["train"],
        "lineage.translate": ["translate"],
        "lineage.walk": ["walk"],
        "measure.generation": ["generate"],
        "measure.raw": ["measure_weights", "weights"],
        "measure.received_text": ["received"],
        "measure.scan": ["scan"],
        "measure.watched": ["watch"],
        "results.open": ["open_run", "runs"],
        "support.errors": ["AttnscopeError"],
        "testing.expect": ["expect"],
    },
)
'''),('from attnscope import _notebook','from attnscope.results import notebook'))
sub('src/attnscope/explanation/catalogue.py',('analyses._{file}','analyses.{file}'))
sub('pyproject.toml',('src/attnscope/walkthrough/_wording.py','src/attnscope/lineage/wording.py'),('*/attention/_triton_[kpr]*.py --','*/kernels/_triton_[kpr]*.py --') if False else ('*/attention/_triton_[kpr]*.py','*/kernels/_triton_[kpr]*.py'),('*/attention/_compiled.py','*/kernels/compiled.py'))
sub('tests/conftest.py',('"_compiled"','"compiled"'))
sub('docs/explain.md',('from attnscope import yamamoto2023  # TODO','from attnscope.reproduction.yamamoto2023 import analyses as yamamoto2023'))

cmds="align compare diff explain generate intervene patch roles scan score train translate walk".split()
p=Path('src/attnscope/cli/__init__.py'); s=p.read_text()
for c in cmds: s=re.sub(rf'^from attnscope.cli.{c} import .*\n','',s,flags=re.M)
s=s.replace('from attnscope.cli import options\n','from attnscope.cli import '+', '.join(sorted([*cmds,'options','runs']))+'\n').replace('from attnscope.cli.runs import export, ls, merge, show\n','')
a=s.index('for command in ('); b=s.index('):',a)
body=s[a:b]
body=body.replace('with_settings(train)','train.with_settings(train.train)')
for c in cmds:
    if c!='train': body=re.sub(rf'^    {c},',f'    {c}.{c},',body,flags=re.M)
for c in ('ls','show','export','merge'): body=re.sub(rf'^    {c},',f'    runs.{c},',body,flags=re.M)
s=s[:a]+body+s[b:]
p.write_text(s)
sub('tests/test_arguments.py',('''PACKAGES = (attnscope, mechanism, arrays, words, faithfulness, detection, results, zoo)
PUBLIC = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in PACKAGES
    for name in package.__all__
    if inspect.isfunction(getattr(package, name)) and inspect.signature(getattr(package, name)).parameters
}
VERBS = [name for name in attnscope.__all__ if f"attnscope.{name}" in PUBLIC]
MORE = (comparison, difference, statistics, images, generation, translation, alignment, evaluation)
''','''VERBS = [name for name in attnscope.__all__ if inspect.isfunction(getattr(attnscope, name))]
PUBLIC = {f"attnscope.{name}": getattr(attnscope, name) for name in VERBS}
for path in sorted(Path(attnscope.__file__).parent.rglob("*.py")):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and "typed" in map(ast.unparse, node.decorator_list):
            name = ".".join(("attnscope", *path.relative_to(Path(attnscope.__file__).parent).with_suffix("").parts))
            PUBLIC.setdefault(f"{name}.{node.name}", getattr(importlib.import_module(name), node.name))
'''),('''    functions = PUBLIC | {
        f"{package.__name__}.{name}": getattr(package, name)
        for package in MORE
        for name in package.__all__
        if inspect.isfunction(getattr(package, name))
    }
''','''    functions = PUBLIC
'''),('import inspect\nimport re\n','import ast\nimport importlib\nimport inspect\nimport re\n'))
sub('tests/mechanism/analyses/test_asked.py',("name: function\n    for name in mechanism.__all__\n    if inspect.isfunction(function := getattr(mechanism, name))\n    and","name: function\n    for name, function in dict(globals()).items()\n    if inspect.isfunction(function)\n    and"))
sub('tests/mechanism/test_catalogue.py',('from attnscope.explanation.catalogue import ANALYSES','from attnscope.explanation import analyses\nfrom attnscope.explanation.catalogue import ANALYSES'),('glob("_[a-z]*.py")','glob("[a-z]*.py")'),('{f"_{analysis.name}" for','{analysis.name for'))
for d in sorted({q.parent for q in Path('src/attnscope').rglob('*.py')}):
    i=d/'__init__.py'
    if i.read_text()=='' :
        i.write_text('import pkgutil\n\nimport lazy_loader\n\n__getattr__, __dir__, __all__ = lazy_loader.attach(\n    __name__, [module.name for module in pkgutil.iter_modules(__path__)]\n)\n')
docs={'capture':'Any model and its attention calls: loaded, watched, verified.','comparison':'What changed between two runs, and what differs between groups of texts.','detection':'Roles of heads by their published definitions.','explanation':'Why a head attends where it does.','explanation/analyses':'The analyses of `explain`, a file each.','explanation/arrays':'Their mathematics on arrays alone.','explanation/passes':'Forward passes that are watched or changed.','intervention':'Whether a head matters.','intervention/arrays':'The mathematics on arrays alone.','intervention/contributions':'What weights miss: norms, rollout, gradients, effective attention.','intervention/passes':'Forward passes that are changed.','intervention/weights':'Tests of weights as explanations.','lineage':'The attention lineage: training, translation, alignment, scores, comparison, steps of one head.','measure':'Where every head attends, over a corpus.','read':'Readers: texts, pairs, chats, images, sounds, videos, and the windows cut from them.','reproduction':'Published papers, done again.','reproduction/yamamoto2023':'Yamamoto and Matsuzaki (2023).','results':'What commands left in folders: opened, described, drawn, exported.','results/figures':'Figures of results.','results/page':'Offline pages of results.','store':'Folders of results, and the work units of a run over many processes.','support':'Errors, checks, numbers, progress, the state of the process.','testing':'Small models whose circuits are planted, and expectations of heads for test suites.'}
for k,v in docs.items():
    i=Path('src/attnscope')/k/'__init__.py'; i.parent.mkdir(exist_ok=True)
    if not i.exists(): i.write_text('import pkgutil\n\nimport lazy_loader\n\n__getattr__, __dir__, __all__ = lazy_loader.attach(\n    __name__, [module.name for module in pkgutil.iter_modules(__path__)]\n)\n')
    s=i.read_text()
    if s.startswith('import pkgutil'): i.write_text(f'"""{v}"""\n\n'+s)
sub('src/attnscope/__init__.py',('submodules={"kernels", "models", "results", "testing"}','submodules={\n'+''.join(f'        "{x}",\n' for x in sorted(k for k in [*docs,'kernels','models'] if '/' not in k))+'    }'))

# ---- documents and tests of the house
import re
from pathlib import Path
p=Path('tests/test_packages.py'); s=p.read_text()
a=s.index('ORDER = ('); b=s.index('FLOORS = {')
s=s[:a]+'''ORDER = (
    {"__main__"},
    {"cli"},
    {"testing"},
    {"reproduction"},
    {"results"},
    {"comparison", "detection"},
    {"intervention"},
    {"lineage"},
    {"explanation"},
    {"measure"},
    {"capture"},
    {"store"},
    {"read"},
    {"models"},
    {"kernels"},
    {"bundled", "support"},
)
'''+s[b:]
s=s.replace('path.stem != "_heuristics"','path.stem != "families"')
s=s.replace("""    graph = {
        name: {other.rpartition(".")[0] for other in imports_of(path, for_types_too=True)}""","""    graph = {
        name: {other.rpartition(".")[0] for other in imports_of(path, at_once=True)}""")
p.write_text(s)
s=p.read_text()
s=s.replace('SEE_MODELS = ("capture", "statistics", "mechanism", "faithfulness", "detection", "walkthrough")','SEE_MODELS = ("capture", "measure", "explanation", "intervention", "detection", "lineage")')
s=re.sub(r'#: A study makes analyses.*?\nMUTUAL = .*?\n\n\n','',s,flags=re.S)
s=s.replace('known.keys() - {name, MUTUAL.get(name)}','known.keys() - {name}')
p.write_text(s)
c=Path('CONTRIBUTING.md'); s=c.read_text()
a=s.index('The packages of `src/attnscope`'); b=s.index('Packages export by their')
s=s[:a]+'''The packages of `src/attnscope`, from the top down:

* `cli/`: the command line, a file for each command with its tables.
* `testing/`: small transformers with planted circuits (the zoo), and expectations of heads for test suites.
* `reproduction/`: published papers, done again; `reproduction/yamamoto2023/` is one.
* `results/`: what commands left in folders: which runs there are, what each holds, its arrays for other tools; `results/figures/` draws them,
  `results/page/` makes offline pages.
* `comparison/`: two models on one corpus, groups of texts, groups of tokens, spans while generating. `detection/`: roles of heads by their published
  definitions.
* `intervention/`: whether a head matters. `intervention/passes/` changes forward passes, `intervention/arrays/` has the mathematics,
  `intervention/weights/` tests weights as explanations, and `intervention/contributions/` measures what they miss.
* `lineage/`: training, translation, alignment, scores, comparison of systems, one head step by step.
* `explanation/`: why a head attends there. `explanation/analyses/` has a file for each analysis, `explanation/arrays/` its mathematics,
  `explanation/passes/` the forward passes that are watched or changed.
* `measure/`: where every head attends: texts, generation, images, videos, sounds, texts with images.
* `capture/`: the attention calls of any Hugging Face model; `src/attnscope/capture/families.py` has every guess about a name.
* `store/`: folders of results, work units, tasks, Ray.
* `read/`: a file a reader: texts, pairs, chats, words, groups, images, sounds, videos; the windows cut from them.
* `models/`: the lineage as Hugging Face models.
* `kernels/`: the attention operation in all its forms, and what can be read off it without its matrix.
* `bundled/`: the model and texts of attnscope. `support/`: errors, checks, numbers, progress, the state of the process.

Where a new one goes:

* a **statistic**: its entry in `measure/quantities.py`; for images, its words there and its sum in `measure/grid.py`;
* a **role** of heads: its entry in `detection/role.py`, and what it reads of an attention call in `detection/seen.py`;
* an **analysis** of `explain`: a file in `explanation/analyses/` with its record, `ANALYSIS`, and its name in `explanation/catalogue.py`;
* a **figure**: a function in a file of `results/figures/`, named by the record that shows it;
* a **model family** that is captured wrongly: its name and what is odd about it in `capture/families.py`, and a case in
  `tests/capture/test_odd_families.py`. What its tiny model needs goes to `tests/every_family/odd.py` or `tests/every_family/odd_senses.py`, what it reads
  to `tests/every_family/asked.py`. Then `python benchmarks/families.py` writes `docs/families.md`;
* a **command**: a file in `cli/`, which parses, calls one verb and prints; how its runs are opened in `results/open.py`, and their headline in
  `results/account.py`;
* a **format** of `export`: `results/export.py`;
* a **measure of what a head is worth**: what changes a forward pass in `intervention/passes/`, what works on arrays alone in `intervention/arrays/`. A kind
  of weight is a line in `intervention/contributions/kinds.py`, a test of weights a file in `intervention/weights/`. Each gets its line in
  `benchmarks/zoo.py`, which reports what it finds where the truth is known;
* a **planted model**: a function in `testing/kinds.py`, its line in `testing/catalogue.py`, and its row in `docs/zoo.md`;
* a **paper** done again: a package in `reproduction/`, whose `ANALYSES` are an entry point.

Modules inside are imported directly; there are no export lists. Imports point downwards and have no cycle, as `tests/test_packages.py` checks. Nothing below
`results` imports matplotlib; `kernels` knows nothing of models.
'''
c.write_text(s)
t=Path('tests/test_contributing.py'); s=t.read_text()
s=s.replace('drawn = [name for name in packages if name != "." and not name.startswith("figures/")]','drawn = [name for name in packages if name != "."]')
a=s.index('def test_every_kind_of_figures_is_named'); b=s.index('def test_every_path_is_there')
s=s[:a]+s[b:]
t.write_text(s)
where={}
import ast
for q in Path('src/attnscope/explanation').rglob('*.py'):
    for n in ast.parse(q.read_text()).body:
        if isinstance(n,(ast.FunctionDef,ast.ClassDef)): where.setdefault(n.name,[]).append('.'.join(q.relative_to('src').with_suffix('').parts))
        elif isinstance(n,ast.Assign) and isinstance(n.targets[0],ast.Name): where.setdefault(n.targets[0].id,[]).append('.'.join(q.relative_to('src').with_suffix('').parts))
def pick(name,kind):
    c=where[name]
    pref={'mechanism':['analyses','.study','.catalogue'],'arrays':['arrays']}[kind]
    for f in pref:
        for m in c:
            if f in m: return m
    return c[0]
for doc in ('docs/analyses.md','docs/intervene.md'):
    q=Path(doc); s=q.read_text()
    for kind in ('mechanism','arrays'):
        line=f'>>> from attnscope import {kind}  # TODO\n'
        if line not in s: continue
        names=sorted(set(re.findall(rf'(?<![\w.]){kind}\.(\w+)',''.join(l for l in s.splitlines(True) if l.startswith(('>>>','...'))))))
        # names taken by both kinds: import module-wise
        lines=[]; 
        for n in names:
            m=pick(n,kind); alias=n if kind=='mechanism' else f'{n}'
            lines.append((m,n))
        txt=''
        for m in sorted({m for m,_ in lines}): txt+=f'>>> from {m} import '+', '.join(n for mm,n in lines if mm==m)+'\n'
        i=s.index(line)
        head,tail=s[:i],s[i+len(line):]
        tail='\n'.join((re.sub(rf'(?<![\w.]){kind}\.(\w+)',r'\1',l) if l.startswith(('>>>','...')) else l) for l in tail.split('\n'))
        s=head+txt+tail
    q.write_text(s)
q=Path('docs/analyses.md'); s=q.read_text()
s=s.replace('>>> study = study(','>>> prepared = study(')
s='\n'.join(re.sub(r'\(study([,)])',r'(prepared\1',l) if l.startswith(('>>>','...')) else l for l in s.split('\n'))
q.write_text(s)
