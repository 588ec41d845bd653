"""Move and merge modules by a plan, and every import of them with it: see run.sh. Removed once the move has landed.

Names that two merged modules share are renamed, imports follow (src, tests, benchmarks, scripts, documents, and dotted names in
strings and comments), stubs go. The plan has a line a module: `new/module: old/module old/module`.
"""
import ast, re, sys, subprocess, shutil, collections
from pathlib import Path
R=Path(sys.argv[1]).resolve(); PLAN_FILE=Path(sys.argv[2]); SRC=R/'src'; S=SRC/'attnscope'
sys.setrecursionlimit(10000)
PLAN={}; MEMBERS=collections.OrderedDict()
def dot(rel): return ('attnscope.'+rel.replace('/','.')).removesuffix('.__init__')
OLDREL={}
for l in open(PLAN_FILE):
    if ':' in l:
        a,b=l.split(':',1); a=a.strip()
        for o in b.split():
            if (S/f'{o}.py').exists():
                PLAN[dot(o)]=dot(a); MEMBERS.setdefault(a,[]).append(o); OLDREL[dot(o)]=o
PLAN['attnscope']='attnscope'
class Mod: pass
M={}
PKG=set()
for p in sorted(S.rglob('*.py')):
    rel=str(p.relative_to(S).with_suffix('')); d=dot(rel) if rel!='__init__' else 'attnscope'
    m=Mod(); m.path=p; m.rel=rel; m.src=p.read_text(encoding='utf-8'); m.tree=ast.parse(m.src); m.name=d
    if p.stem=='__init__': PKG.add(d)
    M[d]=m
def targets(t):
    if isinstance(t,ast.Name): yield t.id
    elif isinstance(t,(ast.Tuple,ast.List)):
        for e in t.elts: yield from targets(e)
    elif isinstance(t,ast.Starred): yield from targets(t.value)
def toplevel(body):
    for n in body:
        yield n
        if isinstance(n,ast.If):
            yield from toplevel(n.body); yield from toplevel(n.orelse)
        elif isinstance(n,ast.Try):
            yield from toplevel(n.body); yield from toplevel(n.orelse); yield from toplevel(n.finalbody)
            for h in n.handlers: yield from toplevel(h.body)
        elif isinstance(n,(ast.With,ast.For)): yield from toplevel(n.body)
for m in M.values():
    m.defs={}; m.imports={}
    for n in toplevel(m.tree.body):
        if isinstance(n,(ast.FunctionDef,ast.ClassDef,ast.AsyncFunctionDef)): m.defs.setdefault(n.name,n)
        elif isinstance(n,ast.Assign):
            for t in n.targets:
                for x in targets(t): m.defs.setdefault(x,n)
        elif isinstance(n,(ast.AnnAssign,ast.AugAssign)):
            for x in targets(n.target): m.defs.setdefault(x,n)
        elif isinstance(n,(ast.For,)):
            for x in targets(n.target): m.defs.setdefault(x,n)
        elif isinstance(n,ast.With):
            for i in n.items:
                if i.optional_vars is not None:
                    for x in targets(i.optional_vars): m.defs.setdefault(x,n)
        elif isinstance(n,ast.ImportFrom):
            for a in n.names: m.imports[a.asname or a.name]=(n.module,a.name)
        elif isinstance(n,ast.Import):
            for a in n.names: m.imports[a.asname or a.name.split('.')[0]]=(a.name,None)
def absmod(pkg,level,module):
    base=pkg.split('.')
    if level>1: base=base[:-(level-1)]
    return '.'.join(base+([module] if module else []))
EXPORT={}
for p in S.rglob('__init__.pyi'):
    pkg=('attnscope.'+'.'.join(p.parent.relative_to(S).parts)).rstrip('.')
    e={}
    for n in ast.parse(p.read_text()).body:
        if isinstance(n,ast.ImportFrom):
            mod=absmod(pkg,n.level,n.module) if n.level else n.module
            for a in n.names: e[a.asname or a.name]=(mod,a.name)
    EXPORT[pkg]=e
TOP=set(EXPORT['attnscope'])
VERBS={n for n,(mod,a) in EXPORT['attnscope'].items() if not (f'{mod}.{a}' in PKG)}
def resolve(mod,name,seen=()):
    """-> ('name',module,name) | ('mod',module) | ('ext',module,name)"""
    if (mod,name) in seen: return ('name',mod,name)
    seen=seen+((mod,name),)
    if not (mod or '').startswith('attnscope'): return ('ext',mod,name)
    if name is None: return ('mod',mod)
    if f'{mod}.{name}' in M and not (mod in EXPORT and name in EXPORT[mod] and EXPORT[mod][name][0]!=mod):
        return ('mod',f'{mod}.{name}')
    if mod in EXPORT and name in EXPORT[mod]: return resolve(*EXPORT[mod][name],seen)
    if mod not in M: raise SystemExit(f'no module {mod} for {name}')
    m=M[mod]
    if name in m.defs: return ('name',mod,name)
    if name in m.imports: return resolve(*m.imports[name],seen)
    if f'{mod}.{name}' in M: return ('mod',f'{mod}.{name}')
    if name in ('__all__','__doc__','__version__'): return ('name',mod,name)
    raise SystemExit(f'{mod} has no {name}')
# ---------- collisions
RENAME={}  # (oldmod,name)->new
LOCALALIAS={} # oldmod -> {import local name: new alias}
def dump(n): return ast.dump(n) if isinstance(n,(ast.Assign,ast.AnnAssign)) and not any(isinstance(x,(ast.Lambda,)) for x in ast.walk(n)) else None
DROP=set()  # (oldmod, name) duplicates of an equal constant
for new,olds in MEMBERS.items():
    if len(olds)<2: continue
    owner={}
    mods=[dot(o) for o in olds]
    # defs first
    for d in mods:
        for name,node in M[d].defs.items():
            if name.startswith('__') and name.endswith('__'): continue
            if name in owner:
                o=owner[name]
                if dump(node) and dump(node)==dump(M[o[1]].defs[name]) and len(list(targets(node.targets[0] if isinstance(node,ast.Assign) else node.target)))==1 and not isinstance(node,ast.AnnAssign) or (isinstance(node,ast.FunctionDef) and ast.dump(node)==ast.dump(M[o[1]].defs[name])):
                    DROP.add((d,name)); RENAME[(d,name)]=name
                    continue
                stem=d.rsplit('.',1)[1].strip('_')
                nn=(f'_{stem}{name}' if name.startswith('_') else f'{stem}_{name}')
                if name.strip('_').isupper(): nn=('_' if name.startswith('_') else '')+f'{stem.upper()}_{name.strip("_")}'
                RENAME[(d,name)]=nn
                print('RENAME',d,name,'->',nn, '' if name.startswith('_') else '   PUBLIC')
                owner[nn]=('def',d)
            else: owner[name]=('def',d)
    for d in mods:
        for local,(mod,nm) in M[d].imports.items():
            r=resolve(mod,nm) if nm is not None or mod.startswith('attnscope') else ('ext',mod,None)
            if r[0]=='name' and r[1] in mods: key=('def',r[1]); wantname=RENAME.get((r[1],r[2]),r[2])
            else: key=r; wantname=local
            if key[0]=='def' : continue  # becomes local
            o=owner.get(local)
            if o==('def',d): continue
            if o is None: owner[local]=key
            elif o!=key:
                stem=d.rsplit('.',1)[1].strip('_')
                alias=f'{local}_of_{mod.rsplit(".",1)[1].strip("_")}' if '.' in mod else f'{local}_{mod}'
                while alias in owner and owner[alias]!=key: alias+='_'
                owner[alias]=key
                LOCALALIAS.setdefault(d,{})[local]=alias
                print('ALIAS',d,local,'as',alias,key,'against',o)
# ---------- scope-aware rename of module globals
class Scopes(ast.NodeVisitor):
    """Collects Name nodes (and def names) that refer to module scope, with their local-import shadowing."""
    def __init__(self): self.stack=[]; self.found=[]
    def locals_of(self,fn):
        names=set(); glob=set()
        a=fn.args
        for x in [*a.posonlyargs,*a.args,*a.kwonlyargs,a.vararg,a.kwarg]:
            if x is not None: names.add(x.arg)
        body=fn.body if isinstance(fn.body,list) else [fn.body]
        def walk(n):
            if isinstance(n,(ast.FunctionDef,ast.ClassDef,ast.AsyncFunctionDef)):
                names.add(n.name); return
            if isinstance(n,ast.Lambda): return
            if isinstance(n,(ast.ListComp,ast.SetComp,ast.DictComp,ast.GeneratorExp)):
                for c in ast.walk(n):
                    if isinstance(c,ast.NamedExpr): names.add(c.target.id)
                return
            if isinstance(n,ast.Name) and isinstance(n.ctx,(ast.Store,ast.Del)): names.add(n.id)
            if isinstance(n,(ast.Import,ast.ImportFrom)):
                for al in n.names: names.add(al.asname or al.name.split('.')[0])
            if isinstance(n,ast.Global): glob.update(n.names)
            if isinstance(n,ast.ExceptHandler) and n.name: names.add(n.name)
            if isinstance(n,(ast.MatchAs,ast.MatchStar)) and n.name: names.add(n.name)
            if isinstance(n,ast.MatchMapping) and n.rest: names.add(n.rest)
            for c in ast.iter_child_nodes(n): walk(c)
        for b in body: walk(b)
        return names-glob
    def visit_FunctionDef(self,n):
        for d in n.decorator_list: self.visit(d)
        for x in [*n.args.defaults,*[k for k in n.args.kw_defaults if k]]: self.visit(x)
        for x in [*n.args.posonlyargs,*n.args.args,*n.args.kwonlyargs,n.args.vararg,n.args.kwarg]:
            if x is not None and x.annotation: self.visit(x.annotation)
        if n.returns: self.visit(n.returns)
        for t in getattr(n,'type_params',[]): self.visit(t)
        self.stack.append(('f',self.locals_of(n)))
        for b in n.body: self.visit(b)
        self.stack.pop()
    visit_AsyncFunctionDef=visit_FunctionDef
    def visit_Lambda(self,n):
        for x in [*n.args.defaults,*[k for k in n.args.kw_defaults if k]]: self.visit(x)
        self.stack.append(('f',self.locals_of(n))); self.visit(n.body); self.stack.pop()
    def visit_ClassDef(self,n):
        for x in [*n.decorator_list,*n.bases,*[k.value for k in n.keywords]]: self.visit(x)
        names=set()
        for b in n.body:
            for c in toplevel([b]):
                if isinstance(c,(ast.FunctionDef,ast.ClassDef)): names.add(c.name)
                elif isinstance(c,ast.Assign):
                    for t in c.targets: names.update(targets(t))
                elif isinstance(c,ast.AnnAssign) and c.value is not None: names.update(targets(c.target))
                elif isinstance(c,ast.AnnAssign): names.update(targets(c.target))
        self.stack.append(('c',names))
        for b in n.body:
            self.visit(b)
        self.stack.pop()
    def comp(self,n):
        names=set()
        for g in n.generators: names.update(targets(g.target))
        first=n.generators[0]
        self.visit(first.iter)
        self.stack.append(('f',names))
        for i,g in enumerate(n.generators):
            self.visit(g.target)
            if i: self.visit(g.iter)
            for c in g.ifs: self.visit(c)
        if isinstance(n,ast.DictComp): self.visit(n.key); self.visit(n.value)
        else: self.visit(n.elt)
        self.stack.pop()
    visit_ListComp=visit_SetComp=visit_DictComp=visit_GeneratorExp=comp
    def visit_AnnAssign(self,n):
        # annotation names resolve to module even when equal to attribute names in class
        self.visit(n.annotation); 
        if n.value: self.visit(n.value)
        self.visit(n.target)
    def visit_Name(self,n):
        for i,(k,names) in enumerate(reversed(self.stack)):
            if k=='c' and i>0: continue
            if n.id in names: return
        self.found.append(n)
def module_names(tree):
    s=Scopes()
    for b in tree.body: s.visit(b)
    return s.found
# ---------- editing
class Text:
    def __init__(self,src): self.lines=src.encode().split(b'\n'); self.edits=[]
    def edit(self,l1,c1,l2,c2,text): self.edits.append((l1,c1,l2,c2,text.encode()))
    def out(self):
        for l1,c1,l2,c2,t in sorted(set(self.edits),reverse=True):
            a=self.lines[l1-1][:c1]; b=self.lines[l2-1][c2:]
            self.lines[l1-1:l2]=(a+t+b).split(b'\n')
        return b'\n'.join(self.lines).decode()
def newref(r):
    """final reference -> (newmodule, newname)"""
    if r[0]=='name':
        mod,name=r[1],r[2]
        return PLAN[mod],RENAME.get((mod,name),name)
    raise ValueError(r)
def import_lines(names, own_new, warn):
    """names: list of (mod,name,asname) attnscope from-imports -> (list of new import text, local bindings {local: newname in own module}, moduleobjs {alias: ('own'|None)})"""
    groups=collections.OrderedDict(); own={}; selfmods=set(); pkgs={}; 
    for mod,name,asn in names:
        local=asn or name
        if mod=='attnscope' and name in VERBS or (mod=='attnscope' and name in ('AttnscopeError','__version__')):
            groups.setdefault('attnscope',[]).append((name,asn)); continue
        r=resolve(mod,name)
        if r[0]=='ext': groups.setdefault(r[1],[]).append((r[2],None if r[2]==local else local)); continue
        if r[0]=='mod':
            if r[1] in PLAN and r[1] not in ('attnscope',):
                nm=PLAN[r[1]]
                if nm==own_new: selfmods.add(local)
                else:
                    pk,base=nm.rsplit('.',1); groups.setdefault(pk,[]).append((base,None if base==local else local))
            elif r[1] in PKG: pkgs[local]=r[1]
            else: warn('modobj?',r)
            continue
        nm,nn=newref(r)
        if nm==own_new: own[local]=nn
        else: groups.setdefault(nm,[]).append((nn,None if nn==local else local))
    text=[]
    for g,ns in groups.items():
        ns=sorted(set(ns),key=str)
        text.append(f'from {g} import '+', '.join(f'{a} as {b}' if b else a for a,b in ns))
    return text,own,selfmods,pkgs
DOT=re.compile(r'\battnscope(?:\.[A-Za-z_]\w*)+(?::[A-Za-z_]\w*\b)?')
def redot(match):
    full=match.group(0)
    if ':' in full:
        r=recolon(COLON.fullmatch(full)) if COLON.fullmatch(full) else full
        if r!=full: return r
        head,_,tail=full.partition(':'); return DOT.sub(redot,head)+':'+tail
    parts=full.split('.')
    if full=='attnscope.analyses' or full.startswith('attnscope.egg'): return full
    # longest module prefix
    for k in range(len(parts),0,-1):
        mod='.'.join(parts[:k])
        if mod in M: break
    rest=parts[k:]
    if mod=='attnscope':
        return full
    if not rest:
        if mod in PLAN: return PLAN[mod]
        return PKGNEW.get(mod,full)
    try: r=resolve(mod,rest[0])
    except SystemExit: 
        return '.'.join([PLAN.get(mod,PKGNEW.get(mod,mod)),*rest])
    if r[0]=='name' and r[1] in PLAN:
        a,b=newref(r); return '.'.join([a,b,*rest[1:]])
    if r[0]=='ext': return '.'.join([PLAN.get(mod,mod),*rest])
    return full
# new home of a package as such: the package of most of its modules
PKGNEW={}
for pkg in PKG:
    c=collections.Counter(PLAN[m].rsplit('.',1)[0] for m in M if m.startswith(pkg+'.') and m in PLAN)
    if pkg in PLAN and pkg!='attnscope': PKGNEW[pkg]=PLAN[pkg]
    elif c: PKGNEW[pkg]=c.most_common(1)[0][0]
COLON=re.compile(r'\b(attnscope(?:\.\w+)*):([A-Za-z_]\w*)\b')
def recolon(m):
    try: r=resolve(m.group(1),m.group(2))
    except SystemExit: return m.group(0)
    if r[0]=='name' and r[1] in PLAN:
        a,b=newref(r); return f'{a}:{b}'
    return m.group(0)
import tokenize,io
def in_strings(text):
    lines=text.split('\n'); edits=[]
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type in (tokenize.STRING,tokenize.COMMENT) and 'attnscope.' in t.string:
            nw=DOT.sub(redot,t.string)
            if nw!=t.string: edits.append((t.start,t.end,nw))
    for (l1,c1),(l2,c2),nw in sorted(edits,reverse=True):
        a=lines[l1-1][:c1]; b=lines[l2-1][c2:]
        lines[l1-1:l2]=(a+nw+b).split('\n')
    return '\n'.join(lines)
def transform(src, own_old, own_new, where, collect_top):
    """-> (header imports [(text, typing?)], body text w/o top-level imports and docstring)"""
    tree=ast.parse(src); T=Text(src)
    warn=lambda *a: print('WARN',where,*a)
    ren={}   # module-level names to rename in this file
    if own_old:
        for (d,n),nn in RENAME.items():
            if d==own_old: ren[n]=nn
        ren.update(LOCALALIAS.get(own_old,{}))
    pkgs={}; selfmods=set(); header=[]; typing_header=[]
    import_nodes=[]
    parents={}
    for n in ast.walk(tree):
        for c in ast.iter_child_nodes(n): parents[c]=n
    def is_top(n):
        p=parents[n]
        return p is tree
    def in_typing(n):
        p=parents.get(n)
        return isinstance(p,ast.If) and 'TYPE_CHECKING' in ast.unparse(p.test) and parents.get(p) is tree and n in p.body
    alias=LOCALALIAS.get(own_old or '',{})
    allpk={}
    for n in ast.walk(tree):
        if isinstance(n,ast.ImportFrom) and (n.module or '').split('.')[0]=='attnscope':
            allpk.update(import_lines([(n.module,a.name,a.asname) for a in n.names],own_new,lambda *a:None)[3])
    taken={n.id for n in ast.walk(tree) if isinstance(n,ast.Name)}|{a.arg for a in ast.walk(tree) if isinstance(a,ast.arg)}
    taken|={a.asname or a.name for n in ast.walk(tree) if isinstance(n,(ast.ImportFrom,ast.Import)) for a in n.names}
    perpkg={}; usedl={}
    def chain0(n):
        parts=[]
        while isinstance(n,ast.Attribute): parts.append(n.attr); n=n.value
        return (n,parts[::-1]) if isinstance(n,ast.Name) else (None,None)
    for n in ast.walk(tree):
        if isinstance(n,ast.Attribute):
            base,parts=chain0(n)
            if base is not None and base.id in allpk:
                mod=allpk[base.id]; k=0
                while k<len(parts) and (f'{mod}.{parts[k]}' in PKG): mod=f'{mod}.{parts[k]}'; k+=1
                if len(parts)==k+1:
                    try: r=resolve(mod,parts[k])
                    except SystemExit: continue
                    if r[0]=='name' and r[1] in PLAN:
                        nm,nn=newref(r)
                        if nm==own_new: continue
                        local=nn
                        if nn in taken or usedl.get(nn,(nm,nn))!=(nm,nn): local=f'{mod.rsplit(".",1)[1]}_{nn}'
                        usedl[local]=(nm,nn)
                        perpkg.setdefault(base.id,{})[(nm,nn)]=local
    for n in ast.walk(tree):
        if isinstance(n,ast.ImportFrom) and n.module=='__future__':
            if collect_top: T.edit(n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,'')
            continue
        if isinstance(n,(ast.ImportFrom,ast.Import)):
            top=is_top(n); typ=in_typing(n)
            if isinstance(n,ast.Import):
                ours=[a for a in n.names if a.name.startswith('attnscope.')]
                texts=[]
                for a in n.names:
                    nm=a.name
                    if nm.startswith('attnscope.'):
                        nm=PLAN.get(nm,PKGNEW.get(nm,nm))
                    loc=a.asname or (alias.get(a.name) if (top or typ) else None)
                    texts.append(f'import {nm}'+(f' as {loc}' if loc else ''))
                own={}
            elif (n.module or '').split('.')[0]=='attnscope':
                names=[]
                for a in n.names:
                    local=a.asname or a.name
                    if (top or typ) and local in alias: local=alias[local]
                    names.append((n.module,a.name,None if local==a.name else local))
                texts,own,sm,pk=import_lines(names,own_new,warn)
                selfmods|=sm; pkgs.update(pk)
                for al in pk:
                    texts+=[f'from {nm} import {nn}'+(f' as {lc}' if lc!=nn else '') for (nm,nn),lc in sorted(perpkg.get(al,{}).items())]
            else:
                parts=[]
                for a in n.names:
                    local=a.asname or a.name
                    if (top or typ) and local in alias: local=alias[local]
                    parts.append(a.name+(f' as {local}' if local!=a.name else ''))
                texts=[f'from {"."*n.level}{n.module or ""} import '+', '.join(parts)]; own={}
                if not collect_top: continue
            if top or typ:
                for loc,nn in own.items():
                    if loc!=nn: ren[loc]=nn
                if collect_top:
                    (header if top else typing_header).extend(texts)
                    
                    if top: T.edit(n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,'')
                    else:
                        blk=parents[n]
                        if all(isinstance(x,(ast.Import,ast.ImportFrom)) for x in blk.body):
                            assert not blk.orelse, where
                            T.edit(blk.lineno,blk.col_offset,blk.end_lineno,blk.end_col_offset,'')
                        else: T.edit(n.lineno,0,n.end_lineno,n.end_col_offset,'')
                else:
                    ind=' '*n.col_offset
                    T.edit(n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,('\n'+ind).join(texts) or ('pass' if not top else ''))
            else:
                for loc,nn in own.items():
                    if loc!=nn: texts.append(f'{loc} = {nn}'); warn('local rename',loc,nn)
                ind=' '*n.col_offset
                T.edit(n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,('\n'+ind).join(texts) or '__DROP__')
    # attributes of packages and own modules
    extra={}
    def chain(n):
        parts=[]
        while isinstance(n,ast.Attribute): parts.append(n.attr); n=n.value
        return (n,parts[::-1]) if isinstance(n,ast.Name) else (None,None)
    handled=set()
    names_mod=set(map(id,module_names(tree)))
    for n in ast.walk(tree):
        if isinstance(n,ast.Attribute):
            base,parts=chain(n)
            if base is None: continue
            if base.id in selfmods:
                par=parents.get(n)
                if n.value is base:
                    T.edit(n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,RENAME.get((None,n.attr),n.attr)); handled.add(id(base))
            elif base.id in pkgs or (base.id=='attnscope' and parts[0] in TOP-VERBS):
                pkg=pkgs.get(base.id) or 'attnscope'
                k=0; mod=pkg
                while k<len(parts) and (f'{mod}.{parts[k]}' in PKG): mod=f'{mod}.{parts[k]}'; k+=1
                if k<len(parts) and n.attr==parts[-1] and len(parts)==k+1:
                    try: r=resolve(mod,parts[k])
                    except SystemExit as e: warn('attr',e); continue
                    if r[0]=='name' and r[1] not in PLAN: warn('attr of package',r); continue
                    if r[0]=='name':
                        nm,nn=newref(r)
                        local=nn
                        if nm==own_new: pass
                        else:
                            local=perpkg.get(base.id,{}).get((nm,nn)) or (nn if nn not in taken else f'{mod.rsplit(".",1)[1]}_{nn}')
                            if base.id not in pkgs: extra[(nm,nn)]=local
                        T.edit(n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,local); handled.add(id(base))
                    else: warn('attr resolves to',r)
    for n in ast.walk(tree):
        if isinstance(n,ast.Name) and (n.id in pkgs or n.id in selfmods) and id(n) not in handled and isinstance(n.ctx,ast.Load):
            warn('package object used',n.id,n.lineno)
    for (nm,nn),local in sorted(extra.items()):
        header.append(f'from {nm} import {nn}'+(f' as {local}' if local!=nn else ''))
    # renames
    if ren:
        for n in module_names(tree):
            if n.id in ren and ren[n.id]!=n.id:
                T.edit(n.lineno,n.col_offset,n.end_lineno,n.end_col_offset,ren[n.id])
        for n in toplevel(tree.body):
            if isinstance(n,(ast.FunctionDef,ast.ClassDef)) and n.name in ren and ren[n.name]!=n.name:
                kw='def' if isinstance(n,ast.FunctionDef) else 'class'
                line=T.lines[n.lineno-1].decode(); c=line.index(n.name,line.index(kw)+len(kw))
                c=len(line[:c].encode()); T.edit(n.lineno,c,n.lineno,c+len(n.name.encode()),ren[n.name])
        for n in ast.walk(tree):
            if isinstance(n,ast.Global):
                for nm in n.names:
                    if nm in ren: warn('global',nm)
    # drop equal constants, module docstring
    for n in tree.body:
        nm=None
        if isinstance(n,(ast.FunctionDef,ast.ClassDef)): nm=n.name
        elif isinstance(n,ast.Assign) and isinstance(n.targets[0],ast.Name): nm=n.targets[0].id
        if own_old and nm and (own_old,nm) in DROP:
            T.edit(min([n.lineno]+[d.lineno for d in getattr(n,'decorator_list',[])]),0,n.end_lineno,n.end_col_offset,'')
    if collect_top:
        n=tree.body[0] if tree.body else None
        if isinstance(n,ast.Expr) and isinstance(n.value,ast.Constant) and isinstance(n.value.value,str):
            T.edit(n.lineno,0,n.end_lineno,n.end_col_offset,'')
    out=T.out()
    out=re.sub(r'\n[ \t]*__DROP__[^\n]*(?=\n)','',out)
    out=in_strings(out)
    return header,typing_header,out,ast.get_docstring(tree,clean=False)
# import-time dependencies between members
def import_time_names(tree):
    found=set()
    class V(ast.NodeVisitor):
        def visit_FunctionDef(self,n):
            for x in [*n.decorator_list,*n.args.defaults,*[k for k in n.args.kw_defaults if k]]: self.visit(x)
        visit_AsyncFunctionDef=visit_FunctionDef
        def visit_Lambda(self,n): pass
        def visit_AnnAssign(self,n):
            if n.value: self.visit(n.value)
        def visit_ClassDef(self,n):
            for x in [*n.decorator_list,*n.bases,*[k.value for k in n.keywords],*n.body]: self.visit(x)
            # annotations of NamedTuple/dataclass fields stay strings
        def visit_If(self,n):
            if 'TYPE_CHECKING' in ast.unparse(n.test): return
            self.generic_visit(n)
        def visit_Name(self,n): found.add(n.id)
    V().visit(tree); return found
OUT={}
for new,olds in MEMBERS.items():
    own_new=dot(new); mods=[dot(o) for o in olds]
    if len(mods)==1:
        h,th,body,dc=transform(M[mods[0]].src,mods[0],own_new,mods[0],False)
        assert not h,(new,h)
        OUT[new]=body; continue
    # order
    deps={}
    for d in mods:
        need=import_time_names(M[d].tree); deps[d]=set()
        for local,(mod,nm) in M[d].imports.items():
            if local in need and nm is not None and (mod or '').startswith('attnscope'):
                r=resolve(mod,nm)
                if r[0]=='name' and r[1] in mods and r[1]!=d: deps[d].add(r[1])
    order=[]; pending=list(mods)
    while pending:
        ready=[d for d in pending if not (deps[d]-set(order))]
        if not ready: print('CYCLE in',new,{d:deps[d]-set(order) for d in pending}); ready=[pending[0]]
        order.append(ready[0]); pending.remove(ready[0])
    H=[];TH=[];bodies=[]
    main=mods[0]; doc=None
    for d in order:
        h,th,body,dc=transform(M[d].src,d,own_new,d,True)
        H+=h; TH+=th
        if d==main: doc=dc
        bodies.append(body.strip('\n'))
    H=list(dict.fromkeys(H)); TH=[t for t in dict.fromkeys(TH) if t not in H]
    text=f'"""{doc}"""\n\n' if doc else ''
    if new!='__main__' or True: text+='from __future__ import annotations\n\n' if any('from __future__ import annotations' in M[d].src for d in mods) else ''
    text+='\n'.join(H)+'\n\n'
    if TH: text+='if TYPE_CHECKING:\n'+'\n'.join('    '+t for t in TH)+'\n\n'
    text+='\n\n\n'.join(b for b in bodies if b)+'\n'
    OUT[new]=text
    for d in mods:
        if (d not in [x for x in mods if 'from __future__ import annotations' in M[x].src]) and len(mods)>1 and any('from __future__ import annotations' in M[x].src for x in mods): print('FUTURE differs',new,d)
if '--dry' in sys.argv: raise SystemExit
# resources
old_files=[m.path for d,m in M.items() if d!='attnscope']+[*S.rglob('*.pyi')]
REST={}
for g in ('tests/**/*.py','benchmarks/*.py','scripts/*.py','docs/**/*.py'):
    for p in R.glob(g):
        src=p.read_text(encoding='utf-8')
        h,th,body,_=transform(src,None,None,str(p.relative_to(R)),False)
        if h:
            # after the first import block: put before first attnscope import / after docstring
            lines=body.split('\n')
            t=ast.parse(body)
            first=next(n for n in t.body if isinstance(n,(ast.Import,ast.ImportFrom)) and not (isinstance(n,ast.ImportFrom) and n.module=='__future__'))
            lines[first.lineno-1:first.lineno-1]=h
            body='\n'.join(lines)
        if body!=src: REST[p]=body
for p in [*R.glob('docs/**/*.md'),*R.glob('*.md'),R/'pyproject.toml',*R.glob('docs/**/*.ipynb')]:
    if p.name=='CHANGELOG.md': continue
    src=p.read_text(encoding='utf-8')
    def fix(m):
        ind,mod,names=m.group(1),m.group(2),m.group(3)
        parts=[]
        for nm in names.split(','):
            a,_,b=nm.strip().partition(' as ')
            parts.append((mod,a.strip(),b.strip() or None))
        text,own,sm,pk=import_lines(parts,None,lambda *a:print('WARN',p,*a))
        for k,v in pk.items(): text.append(f'from attnscope import {k}  # TODO'); print('TODO',p,k)
        return '\n'.join(ind+t.replace('attnscope','\0') for t in text)
    body=re.sub(r'^((?:>>> |\.\.\. )?)from (attnscope[\w.]*) import ([\w, ]+)$',fix,src,flags=re.M)
    body=DOT.sub(redot,body).replace('\0','attnscope')
    if body!=src: REST[p]=body
for f in old_files: f.unlink()
for new,text in OUT.items():
    q=S/f'{new}.py'; q.parent.mkdir(parents=True,exist_ok=True); q.write_text(text,encoding='utf-8')
moves={'report':'results/page'}
for a,b in moves.items():
    for f in (S/a).iterdir():
        if f.is_file(): (S/b).mkdir(parents=True,exist_ok=True); shutil.move(f,S/b/f.name)
for p,b in REST.items(): p.write_text(b,encoding='utf-8')
for d in sorted(S.rglob('*'),reverse=True):
    if d.is_dir():
        if d.name=='__pycache__': shutil.rmtree(d)
        elif not any(d.iterdir()): d.rmdir()
DOCS={}
for d in sorted({q.parent for q in S.rglob('*.py')}):
    if not (d/'__init__.py').exists(): (d/'__init__.py').write_text('')
