//! Parser of Slurm's compact lists of host names: "node[01-03,7],gpu5", also "rack[0-1]n[0-3]".

/// Most hosts in a list: Slurm's own limit for a cluster (MaxNodeCount). Brackets multiply, so even a short list could
/// name any number of hosts.
const MAX_HOSTS: u64 = 1 << 16;

/// Longest host name (RFC 1035).
const MAX_NAME_BYTES: usize = 255;

/// Most digits of a number, including leading zeros.
const MAX_DIGITS: usize = 18;

/// Longest list that is read. Slurm's own limit for a node's name is 1 KiB, and its lists are compact.
const MAX_LIST_BYTES: usize = 1 << 20;

/// Returns all hosts, in the order of the list. An error says which part cannot be read.
#[cfg(test)]
fn expand(list: &str) -> Result<Vec<String>, String> {
    expand_up_to(list, usize::MAX)
}

/// Returns the first `most` hosts. The names of the others are never built.
fn expand_up_to(list: &str, most: usize) -> Result<Vec<String>, String> {
    if list.len() > MAX_LIST_BYTES {
        return Err(format!("it has {} bytes", list.len()));
    }
    let mut hosts = Vec::new();
    for part in split_outside_brackets(list)? {
        let part = part.trim();
        if part.is_empty() {
            return Err(format!("'{list}' has an empty name"));
        }
        expand_part("", part, most, &mut hosts)?;
        if hosts.len() >= most {
            break;
        }
    }
    Ok(hosts)
}

/// Returns the first host of a list.
pub(crate) fn first(list: &str) -> Result<String, String> {
    expand_up_to(list, 1)?.into_iter().next().ok_or_else(|| "the list is empty".to_owned())
}

fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (i, c) in list.char_indices() {
        match c {
            '[' if inside => return Err(format!("'{list}' has nested brackets")),
            '[' => inside = true,
            ']' if !inside => return Err(format!("'{list}' has an unmatched closing bracket")),
            ']' => inside = false,
            ',' if !inside => {
                parts.push(&list[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("'{list}' has an unclosed bracket"));
    }
    parts.push(&list[start..]);
    Ok(parts)
}

fn expand_part(done: &str, rest: &str, most: usize, hosts: &mut Vec<String>) -> Result<(), String> {
    let Some((head, after)) = rest.split_once('[') else {
        if done.len() + rest.len() > MAX_NAME_BYTES {
            return Err(format!("a host name has at most {MAX_NAME_BYTES} bytes"));
        }
        if hosts.len() as u64 >= MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} hosts"));
        }
        hosts.push(format!("{done}{rest}"));
        return Ok(());
    };
    if done.len() + head.len() >= MAX_NAME_BYTES {
        return Err(format!("a host name has at most {MAX_NAME_BYTES} bytes"));
    }
    let (ranges, tail) = after.split_once(']').ok_or_else(|| format!("'{rest}' has an unclosed bracket"))?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        // Leading zeros count, because a number with many digits would make every name that long.
        let digits =
            |text: &str| (1..=MAX_DIGITS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return Err(format!("'{range}' is not a number or range of numbers"));
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("'{text}' is too large"));
        let (low, high) = (number(first)?, number(last)?);
        if high < low || high - low >= MAX_HOSTS {
            return Err(format!("'{range}' is not a valid range"));
        }
        let width = first.len();
        for n in low..=high {
            if hosts.len() >= most {
                return Ok(());
            }
            expand_part(&format!("{done}{head}{n:0width$}"), tail, most, hosts)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_expand_as_slurm_means_them() {
        for (list, hosts) in [
            ("node7", "node7"),
            ("a,b", "a b"),
            ("node[1-3]", "node1 node2 node3"),
            ("node[08-11]", "node08 node09 node10 node11"),
            ("node[001,003-004],gpu5", "node001 node003 node004 gpu5"),
            ("r[0-1]n[1-2]", "r0n1 r0n2 r1n1 r1n2"),
            ("n[1-2].cluster.example", "n1.cluster.example n2.cluster.example"),
            ("gpu-a-[9-10]", "gpu-a-9 gpu-a-10"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), hosts);
            assert_eq!(first(list).unwrap(), hosts.split(' ').next().unwrap());
        }
    }

    #[test]
    fn the_first_host_is_known_without_the_others() {
        assert_eq!(first(&"a,".repeat(100_000)), Ok("a".to_owned()));
        assert!(expand(&format!("{}a", "a,".repeat(100_000))).is_err());
    }

    #[test]
    fn broken_lists_are_refused() {
        for list in [
            "",
            "a,,b",
            "n[1-",
            "n]1[",
            "n[[1]]",
            "n[x]",
            "n[3-1]",
            "n[1-]",
            "n[0-99999999999]",
            "n[0-9999999]",
            "n[00000000000000000000000000000001-2]",
            &"x".repeat(256),
        ] {
            assert!(expand(list).is_err(), "{list}");
        }
        // Fuzzing found these lists: brackets multiply the names, and each bracket makes them longer.
        for brackets in [17, 1000] {
            assert!(expand(&"n[0-1]".repeat(brackets)).is_err(), "{brackets} brackets");
        }
        let long = format!("{}[0-65535]", "x[0]".repeat(200));
        assert!(expand(&long).is_err());
    }
}
