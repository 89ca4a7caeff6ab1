//! Parses the hosts of a job from the forms that users write.

use std::path::Path;

use crate::error::{CliError, Result};

/// A host, and the ranks that run on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// Name by which the agent knows the host.
    pub name: String,
    /// Ranks in ascending order.
    pub ranks: Vec<u32>,
}

const FORMS: &str = "Write hosts as a:4,b:4 or a,b; in a file, one per line, as `a`, `a:4` or `a slots=4`";

/// Parses a list such as `a:4,b:4`. A host without a number gets `each` ranks, or one. A host may appear again and then
/// gets the next ranks, so that users can choose where ranks run.
pub(super) fn parse(list: &str, each: Option<u32>) -> Result<Vec<Host>> {
    place(list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(counted), each)
}

/// Reads a file with one host per line, and comments after `#`; also returns notes for the user.
pub(super) fn read(path: &Path, each: Option<u32>) -> Result<(Vec<Host>, Vec<String>)> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        CliError::usage(
            format!("the host file {} cannot be read: {error}", path.display()),
            "Check its name, and that it is readable",
        )
    })?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut notes = Vec::new();
    let entries = lines.filter(|line| !line.is_empty()).map(|line| of_line(line, &mut notes));
    let hosts = place(entries, each)?;
    Ok((hosts, notes))
}

/// Words of host files of MPICH and Open MPI without effect here, and the remedy.
const WITHOUT_EFFECT: [(&[&str], &str); 4] = [
    (&["binding"], "--bind binds ranks"),
    (&["ifname"], "KOLO_SOCKET_IFNAME names interfaces"),
    (&["user", "username", "user-name", "user_name"], "write USER@HOST"),
    (&["port"], "give the port to --agent, for example 'ssh -p 2222'"),
];

/// A host's name, and its number of ranks if one was given.
type Entry = (String, Option<u32>);

fn of_line(line: &str, notes: &mut Vec<String>) -> Result<Entry> {
    let (name, rest) = line.split_once(|byte: char| byte.is_ascii_whitespace()).unwrap_or((line, ""));
    let mut found = counted(name)?;
    // Spaces are permitted around the equals sign.
    let rest = rest.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    for word in rest.split_ascii_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let idle = WITHOUT_EFFECT.iter().find(|(keys, _)| keys.contains(&key)).map(|(_, remedy)| remedy);
        match (key, idle) {
            // Open MPI has several names for the number.
            ("slots" | "cpu" | "count", _) => found.1 = Some(count(line, value)?),
            // The most ranks do not affect where ranks run first.
            ("max_slots" | "max-slots" | "slots_max" | "slots-max", _) => {}
            (_, Some(remedy)) => {
                let note = format!("'{key}' in the host file has no effect: {remedy}");
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            _ => {
                return Err(CliError::usage(
                    format!("'{word}' is not understood in the host line '{line}'"),
                    FORMS,
                ));
            }
        }
    }
    Ok(found)
}

/// Parses a name and a number behind a colon. IPv6 addresses are in brackets if a number follows.
fn counted(entry: &str) -> Result<Entry> {
    let bare = |name: &str| {
        let (user, host) =
            name.rsplit_once('@').map_or(("", name), |(user, host)| (&name[..=user.len()], host));
        format!("{user}{}", host.trim_start_matches('[').trim_end_matches(']'))
    };
    let (name, ranks) = match entry.rsplit_once(':') {
        Some((name, _)) if name.contains(':') && !name.ends_with(']') => (bare(entry), None),
        Some((name, number)) if !(number.ends_with(']')) => (bare(name), Some(count(entry, number)?)),
        _ => (bare(entry), None),
    };
    // The name becomes an argument of the agent, which must not take it for an option.
    if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) {
        return Err(CliError::usage(format!("'{entry}' names no host"), FORMS));
    }
    Ok((name, ranks))
}

fn count(entry: &str, number: &str) -> Result<u32> {
    number.parse().ok().filter(|ranks| (1..=super::MAX_RANKS).contains(ranks)).ok_or_else(|| {
        CliError::usage(
            format!(
                "'{number}' is not a valid number of ranks in '{entry}'; a machine runs 1 to {}",
                super::MAX_RANKS
            ),
            FORMS,
        )
    })
}

fn place(entries: impl Iterator<Item = Result<Entry>>, each: Option<u32>) -> Result<Vec<Host>> {
    let mut hosts: Vec<Host> = Vec::new();
    let mut next = 0_u32;
    let mut unused = each;
    for entry in entries {
        let (name, given) = entry?;
        let ranks = given.or_else(|| unused.take().or(each)).unwrap_or(1);
        let end = next.checked_add(ranks).ok_or_else(|| CliError::usage("too many ranks", FORMS))?;
        match hosts.iter_mut().find(|host| host.name == name) {
            Some(host) => host.ranks.extend(next..end),
            None => hosts.push(Host { name, ranks: (next..end).collect() }),
        }
        next = end;
    }
    if hosts.is_empty() {
        return Err(CliError::usage("no host is named", FORMS));
    }
    if let Some(host) = hosts.iter().find(|host| host.ranks.len() > super::MAX_RANKS as usize) {
        return Err(CliError::usage(
            format!("host {} gets {} ranks in all", host.name, host.ranks.len()),
            format!("Give it at most {}", super::MAX_RANKS),
        ));
    }
    if let Some(each) = unused {
        return Err(CliError::usage(
            format!("-n {each} has no effect, since all hosts have numbers of their own"),
            "Leave out -n, or the numbers of the hosts that it is for",
        ));
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, ranks: impl IntoIterator<Item = u32>) -> Host {
        Host { name: name.into(), ranks: ranks.into_iter().collect() }
    }

    #[test]
    fn lists() {
        assert_eq!(parse("a:2,b:1", None).unwrap(), [host("a", 0..2), host("b", 2..3)]);
        assert_eq!(parse("a, b", Some(2)).unwrap(), [host("a", 0..2), host("b", 2..4)]);
        assert_eq!(parse("a:1,b:2,a:1", None).unwrap(), [host("a", [0, 3]), host("b", 1..3)]);
        assert_eq!(parse("me@10.0.0.1:2", None).unwrap(), [host("me@10.0.0.1", 0..2)]);
        assert_eq!(parse("me@[fd00::8]:2", None).unwrap(), [host("me@fd00::8", 0..2)]);
        assert_eq!(
            parse("fd00::7,[fd00::8]:2", None).unwrap(),
            [host("fd00::7", 0..1), host("fd00::8", 1..3)]
        );
    }

    #[test]
    fn files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::fs::write(&path, "# mine\na slots=2 max_slots=8\n\nb:3   # the big one\nc\n").unwrap();
        let (hosts, notes) = read(&path, None).unwrap();
        assert_eq!(hosts, [host("a", 0..2), host("b", 2..5), host("c", 5..6)]);
        assert_eq!(notes, [""; 0]);
        let text = "a:2 binding=rr\nb ifname=eth0\nc slots = 2 port =22\nd\tcpu= 3 username=me port=22\n";
        std::fs::write(&path, text).unwrap();
        let (hosts, notes) = read(&path, None).unwrap();
        assert_eq!(hosts, [host("a", 0..2), host("b", 2..3), host("c", 3..5), host("d", 5..8)]);
        let words: Vec<&str> = notes.iter().filter_map(|note| note.split(' ').next()).collect();
        assert_eq!(words, ["'binding'", "'ifname'", "'port'", "'username'"], "each once");
        std::fs::write(&path, "a = 2\n").unwrap();
        assert!(read(&path, None).is_err());
        std::fs::write(&path, "a cpus=2\n").unwrap();
        assert!(read(&path, None).unwrap_err().message.contains("'cpus=2' is not understood"));
        assert!(read(&folder.path().join("none"), None).unwrap_err().message.contains("cannot be read"));
    }

    #[test]
    fn the_number_for_each_host_is_used_or_refused() {
        assert_eq!(parse("a:1,b,c", Some(2)).unwrap(), [host("a", 0..1), host("b", 1..3), host("c", 3..5)]);
        let error = parse("a:4,b:4", Some(2)).unwrap_err();
        assert!(error.message.contains("-n 2 has no effect"), "{error}");
        let error = parse("a:4096,b,a:1", None).unwrap_err();
        assert!(error.message.contains("host a gets 4097 ranks"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (list, problem) in [
            ("", "no host"),
            (",", "no host"),
            ("a:0", "'0' is not a valid number"),
            ("a:x", "'x' is not a valid number"),
            (":4", "names no host"),
            ("-oProxyCommand=x:1", "names no host"),
            ("a:99999", "'99999' is not a valid number"),
        ] {
            let error = parse(list, None).unwrap_err();
            assert!(error.message.contains(problem), "{list}: {error}");
        }
    }
}
