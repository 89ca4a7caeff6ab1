//! Files for results, opened before anything is measured: a name that cannot be used must not cost a measurement.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{CliError, Result};

/// A file that is open, and keeps its former contents until it is written.
#[derive(Debug)]
pub(crate) struct OutputFile {
    /// The contents in a word or two, for errors.
    what: &'static str,
    path: PathBuf,
    file: File,
    /// Whether the file is new and empty; it then disappears if nothing is written.
    is_unused: bool,
}

impl OutputFile {
    /// Opens a file for `what`.
    pub(crate) fn open(what: &'static str, path: &Path) -> Result<Self> {
        let open = |is_new: bool| {
            OpenOptions::new().write(true).create(true).truncate(false).create_new(is_new).open(path)
        };
        // An existing file may also be a link to one that is to be created.
        let (opened, is_unused) = match open(true) {
            Ok(file) => (Ok(file), true),
            Err(_) => (open(false), false),
        };
        let file = opened.map_err(|error| unwritable(what, path, &error))?;
        Ok(Self { what, path: path.to_owned(), file, is_unused })
    }

    /// Writes the text, and nothing else, into the file.
    pub(crate) fn write(mut self, text: &str) -> Result<()> {
        self.is_unused = false;
        let written = self.file.metadata().and_then(|found| {
            // Pipes and devices have no length.
            let emptied = if found.is_file() { self.file.set_len(0) } else { Ok(()) };
            emptied.and_then(|()| self.file.write_all(text.as_bytes()))
        });
        written.map_err(|error| unwritable(self.what, &self.path, &error))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_unused {
            // An empty file that stays behind does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn unwritable(what: &str, path: &Path, error: &std::io::Error) -> CliError {
    CliError::system(format!("the {what} {} cannot be written", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_contents_until_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let open = || OutputFile::open("plot", &path);
        drop(open().unwrap());
        assert!(!path.exists(), "nothing was written");
        open().unwrap().write("a longer text").unwrap();
        drop(open().unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a longer text");
        open().unwrap().write("text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        let error = OutputFile::open("plot", &folder.path().join("none/file")).unwrap_err();
        assert!(error.message.starts_with("the plot ") && error.message.contains("none/file"), "{error}");
        let error = OutputFile::open("plot", Path::new("/dev/full")).unwrap().write("text").unwrap_err();
        assert!(error.message.contains("cannot be written"), "{error}");
    }
}
