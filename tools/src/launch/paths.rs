//! The names by which this process's folder and program are known, with the links that the user has gone through: other
//! hosts may have the links, but not what is behind them here.

use std::ffi::OsStr;
use std::fs::{Metadata, metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the folder as the shell names it, if `PWD` is up to date, or else its physical path.
pub(super) fn folder() -> io::Result<PathBuf> {
    folder_called(std::env::var_os("PWD").map(PathBuf::from))
}

fn folder_called(name: Option<PathBuf>) -> io::Result<PathBuf> {
    match name.filter(|path| path.is_absolute() && is_same(path, Path::new("."))) {
        Some(path) => Ok(path),
        None => std::env::current_dir(),
    }
}

/// Returns the path by which this program was called, or else its physical path.
pub(super) fn program() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let name = std::env::args_os().next().unwrap_or_default();
    Ok(found(&name, std::env::var_os("PATH").as_deref(), &folder()?, &own).unwrap_or(own))
}

/// Returns the path of the program `own` that a shell has found for a name.
fn found(name: &OsStr, path: Option<&OsStr>, folder: &Path, own: &Path) -> Option<PathBuf> {
    let has_folder = name.as_encoded_bytes().contains(&b'/');
    let candidates = match path {
        _ if has_folder => vec![PathBuf::from(name)],
        Some(path) => std::env::split_paths(path).map(|at| at.join(name)).collect(),
        None => vec![],
    };
    // Components leave out the dots of "./kolo".
    let absolute = candidates.into_iter().map(|at| folder.join(at).components().collect::<PathBuf>());
    absolute.into_iter().find(|at| is_same(at, own))
}

fn is_same(one: &Path, other: &Path) -> bool {
    let place = |file: &Metadata| (file.dev(), file.ino());
    metadata(one).is_ok_and(|one| metadata(other).is_ok_and(|other| place(&one) == place(&other)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_folder_keeps_the_name_that_leads_to_it() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("link");
        let here = std::env::current_dir().unwrap();
        symlink(&here, &link).unwrap();
        assert_eq!(folder_called(Some(link.clone())).unwrap(), link);
        for other in [None, Some(root.path().to_owned()), Some(".".into()), Some("/no/such".into())] {
            assert_eq!(folder_called(other).unwrap(), here);
        }
    }

    #[test]
    fn a_program_keeps_the_path_by_which_it_was_found() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for folder in ["0.2", "bin", "other"] {
            std::fs::create_dir(at(folder)).unwrap();
        }
        let own = at("0.2/kolo");
        std::fs::write(&own, "").unwrap();
        std::fs::write(at("other/kolo"), "").unwrap();
        symlink(&own, at("bin/kolo")).unwrap();
        let path = std::env::join_paths([at("other"), at("none"), at("bin")]).unwrap();
        let find = |name: &str| found(name.as_ref(), Some(&path), root.path(), &own);
        assert_eq!(find("kolo"), Some(at("bin/kolo")));
        assert_eq!(find("./bin/kolo"), Some(at("bin/kolo")));
        assert_eq!(find(at("bin/kolo").to_str().unwrap()), Some(at("bin/kolo")));
        assert_eq!((find("other/kolo"), find("nothing")), (None, None));
        assert_eq!(found("kolo".as_ref(), None, root.path(), &own), None);
    }
}
