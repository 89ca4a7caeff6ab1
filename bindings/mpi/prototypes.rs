// Makes the C prototypes of the functions from the same table. A test compares them with `include/mpi_functions.h`.

#[allow(dead_code, reason = "see `prototypes`")]
fn c_type(function: &Function, argument: &Argument) -> String {
    let own_name = argument.name.trim_end_matches('_');
    // C++ reserves some names.
    let name = match own_name {
        "class" => "number",
        "delete" => "deleter",
        _ => own_name,
    };
    let is_count = function.name.ends_with("_x") || function.name.ends_with("_c");
    let of_types = ["Type_", "Pack_", "Unpack_", "Get_elements", "Status_"];
    let address =
        if is_count && of_types.iter().any(|start| function.name.starts_with(start)) { "MPI_Count" } else { "MPI_Aint" };
    let count = if function.large { "MPI_Count" } else { "int" };
    let place = if function.large { "MPI_Aint" } else { "int" };
    let (mark, inner) = match argument.kind.split_at(1) {
        (mark @ ("*" | "&" | "?"), inner) => (mark, inner),
        _ => ("", argument.kind.as_str()),
    };
    let handle = match inner {
        "comm" => "MPI_Comm",
        "type" => "MPI_Datatype",
        "op" => "MPI_Op",
        "group" => "MPI_Group",
        "info" => "MPI_Info",
        "errh" => "MPI_Errhandler",
        "req" => "MPI_Request",
        "win" => "MPI_Win",
        "msg" => "MPI_Message",
        "session" => "MPI_Session",
        "cvar" => "MPI_T_cvar_handle",
        "pvar" => "MPI_T_pvar_handle",
        "psess" => "MPI_T_pvar_session",
        "tenum" => "MPI_T_enum",
        "file" => "MPI_File",
        "n" => count,
        "u" => place,
        "a" => address,
        "o" | "disp" => "MPI_Offset",
        "s" if mark == "*" => "char",
        "types" if mark == "*" => return format!("MPI_Datatype {name}[]"),
        "ranks" if mark == "*" => return format!("int {name}[]"),
        "" => unreachable!(),
        _ => "int",
    };
    if !mark.is_empty() {
        return format!("{handle} *{name}");
    }
    match inner {
        "cbuf" => format!("const void *{name}"),
        "p" if name == "arguments" => format!("char *{name}[]"),
        "p" if name == "argv" => format!("char ***{name}"),
        "cp" => format!("const void *{name}"),
        "buf" | "p" => format!("void *{name}"),
        "s" => format!("const char *{name}"),
        "pi" => format!("int *{name}"),
        "fn" | "copyfn" => format!("{} *{name}", c_function(&function.name, own_name)),
        "ints" => format!("int {name}[]"),
        "cints" if name == "ranges" => format!("int {name}[][3]"),
        "cints" | "cranks" | "dists" | "dargs" => format!("const int {name}[]"),
        // Compilers warn of MPI_UNWEIGHTED, which is a small number in the standard's ABI, where an array is expected.
        "weights" => format!("const int *{name}"),
        "outweights" => format!("int *{name}"),
        "outs" if name == "addresses" => format!("MPI_Aint {name}[]"),
        "outs" => format!("{address} {name}[]"),
        "as" => format!("const {address} {name}[]"),
        "ns" => format!("const {count} {name}[]"),
        "ds" => format!("const {place} {name}[]"),
        "types" => format!("const MPI_Datatype {name}[]"),
        "reqs" if function.name.starts_with("Request_get") => format!("const MPI_Request {name}[]"),
        "reqs" => format!("MPI_Request {name}[]"),
        "status" | "statuses" => format!("MPI_Status *{name}"),
        "cstatus" => format!("const MPI_Status *{name}"),
        _ => format!("{handle} {name}"),
    }
}

#[allow(dead_code, reason = "see `prototypes`")]
fn c_function(function: &str, argument: &str) -> String {
    let object = function.split('_').next().unwrap_or_default();
    match (function, argument) {
        ("Op_create", _) => "MPI_User_function".to_owned(),
        ("Op_create_c", _) => "MPI_User_function_c".to_owned(),
        ("Register_datarep", "extent") | ("Register_datarep_c", "extent") => "MPI_Datarep_extent_function".to_owned(),
        ("Register_datarep", _) => "MPI_Datarep_conversion_function".to_owned(),
        ("Register_datarep_c", _) => "MPI_Datarep_conversion_function_c".to_owned(),
        ("Grequest_start", what) => format!("MPI_Grequest_{what}_function"),
        ("Keyval_create", "copy") => "MPI_Copy_function".to_owned(),
        ("Keyval_create", "delete") => "MPI_Delete_function".to_owned(),
        (_, "copy" | "delete") => format!("MPI_{object}_{argument}_attr_function"),
        _ => format!("MPI_{object}_errhandler_function"),
    }
}

/// Returns the header, for the test that compares it.
#[allow(dead_code, reason = "build scripts do without")]
pub(crate) fn prototypes(table: &str) -> String {
    let is_own = |line: &&str| line.split(' ').next().is_some_and(|head| head.ends_with('+'));
    let (own, shared): (Vec<&str>, Vec<&str>) = table.lines().partition(is_own);
    let [own, shared] = [own, shared].map(|lines| lines.join("\n"));
    format!(
        "/* Made from functions.txt; see the test `header`. */\n{}#ifdef MPI_ABI_VERSION\n{}#else\n{}#endif\n",
        lines(functions(&shared, Abi::Mpich)),
        lines(functions(&own, Abi::Standard)),
        lines(functions(&own, Abi::Mpich)),
    )
}

#[allow(dead_code, reason = "see `prototypes`")]
fn lines(functions: Vec<Function>) -> String {
    let mut out = String::new();
    for function in functions {
        let arguments: Vec<String> = function.arguments.iter().map(|argument| c_type(&function, argument)).collect();
        let mut arguments = arguments;
        if function.name == "Pcontrol" {
            arguments.push("...".to_owned());
        }
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        for prefix in ["MPI", "PMPI"] {
            out += &format!("int {prefix}_{}({arguments});\n", function.name);
        }
    }
    out
}
