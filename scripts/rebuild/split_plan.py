"""Split the planned groups so that merged modules import each other without a cycle: python split_plan.py ROOT PLAN."""
import ast,sys,collections
from pathlib import Path
exec(Path(__file__).with_name('move.py').read_text().split('# ---------- collisions')[0])
def edges_of(m):
    def top(body):
        for n in body:
            if isinstance(n,ast.If) and 'TYPE_CHECKING' in ast.unparse(n.test): continue
            yield n
            if isinstance(n,(ast.If,ast.Try,ast.With)): yield from top(n.body); yield from top(getattr(n,'orelse',[]))
    out=set()
    for n in top(m.tree.body):
        if isinstance(n,ast.ImportFrom) and (n.module or '').startswith('attnscope'):
            for a in n.names:
                if n.module=='attnscope' and a.name in VERBS: continue
                r=resolve(n.module,a.name)
                if r[0] in('name','mod') and r[1]!=m.name: out.add(r[1])
    return out
G={d:{x for x in edges_of(m) if x in PLAN and x!='attnscope'} for d,m in M.items() if d in PLAN and d!='attnscope'}
# clusters
cl={d:d for d in G}; members={d:{d} for d in G}
def quotient():
    q=collections.defaultdict(set)
    for a in G:
        for b in G[a]:
            if cl[a]!=cl[b]: q[cl[a]].add(cl[b])
    return q
def path(q,a,b,skip_direct):
    st=[x for x in q[a] if not(skip_direct and x==b)]; seen=set(st)
    while st:
        x=st.pop()
        if x==b: return True
        for y in q[x]:
            if y not in seen: seen.add(y); st.append(y)
    return False
q=quotient()
def merge(a,b):
    for x in members[b]: cl[x]=a
    members[a]|=members.pop(b)
def lines(c): return sum(M[x].src.count('\n') for x in members[c])
GROUPS=collections.OrderedDict()
for a,os in MEMBERS.items(): GROUPS[a]=[dot(o) for o in os]
LIMIT=1150  # lines of a merged module
NAMES={'capture/processors_':'capture/text_image_processors','measure/texts':'measure/generation_texts','measure/rows_':'measure/generation_rows','measure/pass':'measure/passes','measure/keep':'measure/writing','intervention/effects_':'intervention/measured_effects','results/figures/changes':'results/figures/panels','capture/hearing':'capture/encoders','measure/each':'measure/visible'}  # better names for what is split off
for g,ms in GROUPS.items():
    changed=True
    while changed:
        changed=False
        cs=list(dict.fromkeys(cl[m] for m in ms))
        best=None
        for i,a in enumerate(cs):
            for b in cs[i+1:]:
                if lines(a)+lines(b)>LIMIT: continue
                q=quotient()
                if path(q,a,b,True) or path(q,b,a,True): continue
                s=lines(a)+lines(b)
                if best is None or s<best[0]: best=(s,a,b)
        if best:
            merge(best[1],best[2]); changed=True
n=0
used=set(GROUPS)
for g,ms in GROUPS.items():
    cs=list(dict.fromkeys(cl[m] for m in ms))
    cs.sort(key=lambda c:(cl[ms[0]]!=c,-lines(c)))
    for i,c in enumerate(cs):
        name=g
        if i:
            big=max(members[c],key=lambda x:M[x].src.count('\n'))
            name=g.rsplit('/',1)[0]+'/'+big.rsplit('.',1)[1].strip('_')
            while name in used: name+='_'
        used.add(name)
        n+=1
        name=NAMES.get(name,name)
        print(f'{name}: '+' '.join(OLDREL[m] for m in ms if cl[m]==c))
print(n,file=sys.stderr)
