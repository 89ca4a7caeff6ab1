// Makes the functions of a front end from the table in `functions.txt`. Both build scripts include this file.
//
// Kinds of arguments: `i` an int; `n` a count (int, or MPI_Count in the form with `_c`); `a` an MPI_Aint or MPI_Count, 64 bits wide in
// both forms; `ns` and `ds` arrays of counts and displacements; `as` an array of MPI_Aint; `cbuf`, `buf` and `p` addresses; `s` a string;
// `fn` a function; `u` a displacement unit; `comm`, `type` and so on handles. A `*` before a kind marks a place for a result, `?` such
// a place that may be NULL, and `&` a value that the call changes. The length of an array stands in brackets behind its kind.

/// The two ABIs; each build script uses one.
#[allow(dead_code, reason = "see above")]
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Abi {
    /// Handles are numbers, those of the engine.
    Mpich,
    /// Handles are addresses.
    Standard,
}

struct Argument {
    name: String,
    kind: String,
    length: String,
}

struct Function {
    name: String,
    /// Name of the engine's function.
    engine: String,
    /// First argument of the engine's function, for a collective: blocking, started or persistent.
    how: Option<&'static str>,
    arguments: Vec<Argument>,
    large: bool,
    has_large: bool,
}

fn lower(name: &str) -> String {
    let name = name.to_lowercase();
    match name.as_str() {
        "abort" | "put" => format!("{name}_call"),
        _ => name,
    }
}

fn argument(text: &str) -> Argument {
    let (name, kind) = text.split_once(':').expect("name:kind");
    let (kind, length) =
        kind.split_once('(').map_or((kind, ""), |(kind, length)| (kind, length.trim_end_matches(')')));
    let name = match name {
        "type" | "in" | "fn" => format!("{name}_"),
        _ => name.to_owned(),
    };
    Argument { name, kind: kind.to_owned(), length: length.to_owned() }
}

/// Returns the functions of an ABI.
fn functions(table: &str, abi: Abi) -> Vec<Function> {
    let mut all = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '-', '%'])) {
        let mut words = line.split_whitespace();
        let head = words.next().expect("a name");
        let rest: Vec<&str> = words.collect();
        let is_collective = head.starts_with('@');
        let forms: &[(bool, &str)] = match (head.chars().last(), abi) {
            (Some('+'), Abi::Mpich) => &[(true, "")],
            (Some('*' | '+'), _) => &[(false, ""), (true, "_c")],
            _ => &[(false, "")],
        };
        let name = head.trim_start_matches('@').trim_end_matches(['*', '+']);
        let (name, engine) = name.split_once('=').unwrap_or((name, name));
        let engine = lower(engine);
        for &(large, suffix) in forms {
            let mut add = |name: String, how, more: &[&str]| {
                let arguments = rest.iter().chain(more).map(|text| argument(text)).collect();
                let name = format!("{name}{suffix}");
                all.push(Function {
                    name,
                    engine: engine.clone(),
                    how,
                    arguments,
                    large,
                    has_large: forms.len() > 1,
                });
            };
            if !is_collective {
                add(name.to_owned(), None, &[]);
                continue;
            }
            add(name.to_owned(), Some("How::Blocking"), &[]);
            let started = format!("I{}{}", name[..1].to_lowercase(), &name[1..]);
            add(started, Some("How::Start(request_)"), &["request:*req"]);
            add(format!("{name}_init"), Some("How::Init(request_)"), &["info:info", "request:*req"]);
        }
    }
    all
}

/// Returns whether an argument of a kind is a handle that the call frees and whose error handler is called.
fn is_freed(kind: &str) -> bool {
    matches!(kind, "&comm" | "&win" | "&session")
}

/// Returns the engine's name of the null handle of a kind of objects that calls make.
fn null_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "comm" => "COMM_NULL",
        "type" => "DATATYPE_NULL",
        "op" => "OP_NULL",
        "group" => "GROUP_NULL",
        "info" => "INFO_NULL",
        "errh" => "ERRHANDLER_NULL",
        // The two kinds of handles have one null handle in the engine.
        "req" | "msg" => "REQUEST_NULL",
        "win" => "WIN_NULL",
        "session" => "SESSION_NULL",
        "file" => "FILE_NULL",
        _ => return None,
    })
}

/// A front end's handling of an argument: its C type in Rust, the code before the call, the engine's argument, and the code after.
struct Passing {
    of: String,
    before: String,
    given: String,
    after: String,
}

fn plain(of: &str, name: &str) -> Passing {
    Passing { of: of.to_owned(), before: String::new(), given: name.to_owned(), after: String::new() }
}

fn checked(of: &str, name: &str) -> Passing {
    let mut passing = plain(of, name);
    passing.before = format!("if {name}.is_null() {{ return null(\"{name}\", @scope, \"MPI_@name\"); }}");
    passing
}

/// Results that need no translation.
fn count_out(name: &str, large: bool, changes: bool) -> Passing {
    if large {
        return checked("*mut i64", name);
    }
    let mut passing = checked("*mut c_int", name);
    let start = if changes { format!("i64::from(*{name})") } else { "0_i64".to_owned() };
    passing.before += &format!(" let mut wide_{name} = {start};");
    passing.given = format!("&raw mut wide_{name}");
    passing.after = format!("*{name} = c_int::try_from(wide_{name}).unwrap_or(UNDEFINED);");
    passing
}

fn common(argument: &Argument, large: bool) -> Option<Passing> {
    let name = argument.name.as_str();
    Some(match argument.kind.as_str() {
        "i" => plain("c_int", name),
        "n" | "u" if large => plain("i64", name),
        "n" | "u" => Passing { given: format!("i64::from({name})"), ..plain("c_int", name) },
        "a" | "o" => plain("i64", name),
        "fn" => plain("*const c_void", name),
        "p" => plain("*mut c_void", name),
        "file" => Passing { given: format!("file_in({name})"), ..plain("usize", name) },
        "*file" | "&file" => place(argument, "*mut usize"),
        "cp" => plain("*const c_void", name),
        // Handles of the tools interface are addresses in both ABIs.
        "cvar" | "pvar" | "psess" | "tenum" => plain("usize", name),
        "?tenum" => plain("*mut usize", name),
        "*cvar" | "&cvar" | "*pvar" | "&pvar" | "*psess" | "&psess" => checked("*mut usize", name),
        "s" => plain("*const c_char", name),
        "*s" => plain("*mut c_char", name),
        "pi" => plain("*mut c_int", name),
        "ints" => plain("*mut c_int", name),
        "cints" => plain("*const c_int", name),
        "outs" => plain("*mut i64", name),
        "as" => plain("*const i64", name),
        "ns" if large => Passing { given: format!("Counts::Longs({name})"), ..plain("*const i64", name) },
        "ds" if large => Passing { given: format!("Counts::Longs({name})"), ..plain("*const i64", name) },
        "ns" | "ds" => Passing { given: format!("Counts::Ints({name})"), ..plain("*const c_int", name) },
        "*i" | "&i" => checked("*mut c_int", name),
        "*a" | "*o" => checked("*mut i64", name),
        "*n" | "*u" => count_out(name, large, false),
        "&n" => count_out(name, large, true),
        _ => return None,
    })
}

fn mpich(argument: &Argument) -> Passing {
    let name = argument.name.as_str();
    match argument.kind.as_str() {
        "buf" => plain("*mut c_void", name),
        "cbuf" | "copyfn" => plain("*const c_void", name),
        "status" | "statuses" => plain("*mut Status", name),
        "cstatus" => plain("*const Status", name),
        "disp" => plain("i64", name),
        "weights" => Passing { given: format!("edges({name})"), ..plain("*const c_int", name) },
        "outweights" => Passing { given: format!("edges({name}).cast_mut()"), ..plain("*mut c_int", name) },
        "types" | "cranks" | "dists" | "dargs" => plain("*const c_int", name),
        "reqs" | "*types" | "*ranks" => plain("*mut c_int", name),
        kind if kind.starts_with(['*', '&']) => checked("*mut c_int", name),
        kind if kind.starts_with('?') => plain("*mut c_int", name),
        _ => plain("c_int", name),
    }
}

fn scope(function: &Function) -> String {
    if function.name.starts_with("T_") {
        return "Scope::Tools".to_owned();
    }
    match function.name.as_str() {
        "Session_init" => return format!("Scope::Given(Kind::Session, {})", passed_handle("handler")),
        "Comm_create_from_group" | "Intercomm_create_from_groups" => {
            return format!("Scope::Given(Kind::Comm, {})", passed_handle("handler"));
        }
        _ => {}
    }
    if matches!(function.name.as_str(), "File_open" | "File_close" | "File_delete") {
        return "Scope::File(0)".to_owned();
    }
    for argument in &function.arguments {
        let name = &argument.name;
        match argument.kind.as_str() {
            "comm" | "&comm" => return format!("Scope::Comm({})", passed_handle(name)),
            "win" | "&win" => return format!("Scope::Win({})", passed_handle(name)),
            "session" | "&session" => return format!("Scope::Session({})", passed_handle(name)),
            "file" => return format!("Scope::File({})", passed_handle(name)),
            _ => {}
        }
    }
    "Scope::Process".to_owned()
}

fn passed_handle(name: &str) -> String {
    format!("handle_{name}")
}

fn one(function: &Function, abi: Abi, out: &mut String) {
    use std::fmt::Write as _;
    let (mut signature, mut before, mut given, mut after, mut names) =
        (String::new(), String::new(), Vec::new(), String::new(), Vec::new());
    // The handles that say whose error handler is called come first, since a NULL argument is an error too.
    let (mut handles, mut always, mut failed) = (String::new(), String::new(), String::new());
    if let Some(how) = function.how {
        given.push(how.replace("request_", "request_to"));
    }
    for argument in &function.arguments {
        let name = &argument.name;
        let passing = common(argument, function.large).unwrap_or_else(|| match abi {
            Abi::Mpich => mpich(argument),
            Abi::Standard => standard(argument),
        });
        let _ = write!(signature, "{name}: {}, ", passing.of);
        names.push(name.clone());
        before += &passing.before;
        before.push(' ');
        // A failed call leaves the null handle. Writing it before the call might change an input, such as a type of a list.
        if let Some((inner, null)) =
            argument.kind.strip_prefix('*').and_then(|kind| Some((kind, null_of(kind)?)))
        {
            let null = format!("engine::constants::{null}");
            let is_same = abi == Abi::Mpich && inner != "file";
            let shown = if is_same { null } else { format!("{inner}_out({null})") };
            failed += &format!("*{name} = {shown};");
        }
        match passing.after.strip_prefix('!') {
            Some(text) => always += text,
            None => after += &passing.after,
        }
        match argument.kind.as_str() {
            // The request of a collective is a part of `How`. Its hints are ignored.
            "*req" if function.how.is_some() => before += &format!("let request_to = {};", passing.given),
            "info" if function.how.is_some() => {}
            _ => given.push(passing.given.clone()),
        }
        if matches!(argument.kind.as_str(), "comm" | "win" | "session" | "file" | "errh") {
            handles += &format!("let {} = {};", passed_handle(name), passing.given);
        }
        // A call that frees an object has its handle only before the call.
        if is_freed(&argument.kind) {
            before += &format!("let {} = *{};", passed_handle(name), passing.given);
        }
    }
    let (names, given) = (names.join(", "), given.join(", "));
    let Function { name, engine, .. } = function;
    let call = match engine.starts_with("type_") && function.has_large {
        true => {
            format!("engine::calls::in_large_form({}, || engine::calls::{engine}({given}))", function.large)
        }
        false => format!("engine::calls::{engine}({given})"),
    };
    let scope = scope(function);
    // A call that frees an object has no handle before its own argument is checked.
    let frees = function.arguments.iter().any(|argument| is_freed(&argument.kind));
    let scope_of_null = if frees { "Scope::Process" } else { &scope };
    let before = handles + &before.replace("@scope", scope_of_null).replace("@name", name);
    let after = if after.is_empty() { String::new() } else { format!("if outcome.is_ok() {{ {after} }}") };
    if !failed.is_empty() {
        always += &format!("if outcome.is_err() {{ {failed} }}");
    }
    let _ = write!(
        out,
        "unsafe fn imp_{name}({signature}) -> c_int {{\n    unsafe {{ {before}let outcome = guard(\"MPI_{name}\", || {call});\n    {after}{always}\n    code_out(engine::finish(outcome, {scope}, \"MPI_{name}\")) }}\n}}\n"
    );
    for prefix in ["MPI", "PMPI"] {
        let _ = write!(
            out,
            "/// See the standard.\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn {prefix}_{name}({signature}) -> c_int {{ unsafe {{ imp_{name}({names}) }} }}\n"
        );
    }
}

/// Returns all functions, in Rust.
pub(crate) fn generate(table: &str, abi: Abi) -> String {
    let mut out = String::new();
    for function in functions(table, abi) {
        one(&function, abi, &mut out);
    }
    for line in table.lines().filter(|line| line.starts_with(['-', '%'])) {
        let name = line[1..].split([' ', '*']).next().unwrap_or_default();
        let scope = match name {
            _ if name.starts_with("T_") => "Tools",
            _ if name.starts_with("Register_datarep") => "File(0)",
            _ => "Process",
        };
        for prefix in ["MPI", "PMPI"] {
            out += &format!(
                "/// Not supported.\n#[unsafe(no_mangle)]\npub extern \"C\" fn {prefix}_{name}() -> c_int {{ missing(\"MPI_{name}\", Scope::{scope}) }}\n"
            );
        }
    }
    out
}

// ---- The standard's ABI ----

fn standard(argument: &Argument) -> Passing {
    let Argument { name, kind, length } = argument;
    let name = name.as_str();
    let handle = |kind: &str| {
        matches!(kind, "comm" | "type" | "op" | "group" | "info" | "errh" | "req" | "win" | "msg" | "session")
    };
    let translated =
        |of: &str, function: &str| Passing { given: format!("{function}({name})"), ..plain(of, name) };
    match kind.as_str() {
        "buf" => translated("*mut c_void", "buffer"),
        "weights" => plain("*const c_int", name),
        "outweights" => plain("*mut c_int", name),
        kind if handle(kind) => translated("usize", &format!("{kind}_in")),
        "pclass" => translated("c_int", "pclass_in"),
        "rank" | "tag" | "level" | "err" | "keyval" | "split" | "order" | "lock" | "asserts" | "class"
        | "amode" | "whence" => translated("c_int", &format!("{kind}_in")),
        "cbuf" => translated("*const c_void", "const_buffer"),
        "disp" => translated("i64", "disp_in"),
        "copyfn" => translated("*const c_void", "own::copy_function"),
        "types" if length.ends_with("peers") => Passing {
            before: format!("let list_{name} = handles({name}, own::{length}(comm), type_in);"),
            given: format!("list_{name}.as_ptr()"),
            ..plain("*const usize", name)
        },
        "types" => Passing {
            before: format!("let list_{name} = handles({name}, {length}, type_in);"),
            given: format!("list_{name}.as_ptr()"),
            ..plain("*const usize", name)
        },
        "cranks" | "dists" | "dargs" => Passing {
            before: format!("let list_{name} = numbers({name}, {length}, {kind}_in);"),
            given: format!("list_{name}.as_ptr()"),
            ..plain("*const c_int", name)
        },
        "reqs" => Passing {
            before: format!("let mut list_{name} = Requests::new({name}, {length});"),
            given: format!("list_{name}.engine()"),
            after: String::new(),
            of: "*mut usize".to_owned(),
        },
        "*types" => Passing {
            before: format!("let mut list_{name} = vec![0; usize::try_from({length}).unwrap_or(0)];"),
            given: format!("list_{name}.as_mut_ptr()"),
            after: format!("handles_back({name}, &list_{name}, type_out);"),
            of: "*mut usize".to_owned(),
        },
        "*ranks" => Passing {
            before: String::new(),
            after: format!("numbers_back({name}, {length}, rank_out);"),
            ..plain("*mut c_int", name)
        },
        "status" => Passing {
            before: format!("let mut place_{name} = Place::new({name}, 1);"),
            given: format!("place_{name}.engine()"),
            after: String::new(),
            of: "*mut AbiStatus".to_owned(),
        },
        "statuses" => Passing {
            before: format!(
                "let mut place_{name} = Place::new({name}, usize::try_from({length}).unwrap_or(0));"
            ),
            given: format!("place_{name}.engine()"),
            after: String::new(),
            of: "*mut AbiStatus".to_owned(),
        },
        "cstatus" => Passing {
            before: format!("let mut place_{name} = Place::new({name}.cast_mut(), 1);"),
            given: format!("place_{name}.engine().cast_const()"),
            after: String::new(),
            of: "*const AbiStatus".to_owned(),
        },
        other if other.starts_with('?') => {
            let inner = &other[1..];
            let of = if handle(inner) { "*mut usize" } else { "*mut c_int" };
            Passing {
                before: format!("let mut inner_{name}: c_int = 0;"),
                given: format!(
                    "if {name}.is_null() {{ std::ptr::null_mut() }} else {{ &raw mut inner_{name} }}"
                ),
                after: format!("if !{name}.is_null() {{ *{name} = {inner}_out(inner_{name}); }}"),
                of: of.to_owned(),
            }
        }
        other => {
            let of = if handle(&other[1..]) { "*mut usize" } else { "*mut c_int" };
            place(argument, of)
        }
    }
}

/// Passes a place for a result, or for a value that the call changes, which is another number for the program than for the engine.
fn place(argument: &Argument, of: &str) -> Passing {
    let name = argument.name.as_str();
    let (mark, inner) = argument.kind.split_at(1);
    let mut passing = checked(of, name);
    let start = if mark == "&" { format!("{inner}_in(*{name})") } else { "0".to_owned() };
    passing.before += &format!(" let mut inner_{name}: c_int = {start};");
    passing.given = format!("&raw mut inner_{name}");
    // A changed value is written back even if the call fails, since the call may still have ended a request.
    let always = if mark == "&" { "!" } else { "" };
    passing.after = format!("{always}*{name} = {inner}_out(inner_{name});");
    passing
}

include!("prototypes.rs");
