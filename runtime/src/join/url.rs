//! Rendezvous URLs.

use std::path::PathBuf;

use super::env::Place;
use super::{JoinSpec, Locator};
use crate::config::check_unicode;
use crate::error::{Error, Result};

/// Content of a URL. Rank and world size may come from elsewhere.
#[derive(Debug)]
pub(crate) struct ParsedUrl {
    pub(crate) locator: Locator,
    pub(crate) rank: Option<u32>,
    pub(crate) world_size: Option<u32>,
}

impl ParsedUrl {
    /// Returns a place in which the URL's rank and world size come first.
    pub(crate) fn over(&self, place: Place) -> Place {
        Place {
            rank: self.rank.unwrap_or(place.rank),
            world_size: self.world_size.unwrap_or(place.world_size),
            ..place
        }
    }
}

const FORMS: &str = "Use env://, tcp://host:port, file:///path or multicast://239.x.y.z:port/job";

impl JoinSpec {
    /// Makes a rank from a URL: `env://` (the launcher's variables), `tcp://host:port?rank=0&world_size=4`,
    /// `file:///path?rank=0&world_size=4`, or `multicast://239.1.2.3:port/job?rank=0&world_size=4`. If the URL lacks
    /// `rank` or `world_size`, the environment of this process must supply them.
    ///
    /// # Errors
    /// [`Error::Configuration`], which names the invalid or missing part of the URL.
    pub fn parse_url(url: &str) -> Result<Self> {
        check_unicode()?;
        Self::parse_url_with(url, &super::process_environment)
    }

    /// Makes a rank from a URL, with another environment than the process's own.
    ///
    /// # Errors
    /// The errors of [`JoinSpec::parse_url`].
    pub fn parse_url_with(url: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        if url.trim_end_matches('/') == "env:" {
            return Self::from_env(environment);
        }
        let parsed = parse(url, "rendezvous URL")?;
        let mut spec = match (parsed.rank, parsed.world_size) {
            (Some(rank), Some(world_size)) => Self::new(rank, world_size, parsed.locator, url),
            _ => {
                let place = super::env::place(environment)?.ok_or_else(|| {
                    Error::configuration(
                        "rendezvous URL",
                        format!("'{url}' names no rank and world size, and neither does the environment"),
                        "Append ?rank=R&world_size=N, or set KOLO_RANK and KOLO_WORLD_SIZE",
                    )
                })?;
                let place = parsed.over(place);
                let source = format!("{url} and {}", place.source);
                place.at(parsed.locator, source)
            }
        };
        super::env::apply_settings(&mut spec, environment)?;
        spec.check()?;
        Ok(spec)
    }
}

/// Parses everything but `env://`.
pub(crate) fn parse(url: &str, setting: &str) -> Result<ParsedUrl> {
    let wrong = |problem: String| Error::configuration(setting, format!("'{url}': {problem}"), FORMS);
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme".into()))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut rank, mut world_size, mut interface) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| wrong(format!("'{pair}' has no value")))?;
        let number = || value.parse::<u32>().map_err(|_| wrong(format!("{name} is not a number: '{value}'")));
        match name {
            "rank" => rank = Some(number()?),
            "world_size" => world_size = Some(number()?),
            "interface" if scheme == "multicast" => {
                let address =
                    value.parse().map_err(|_| wrong(format!("interface '{value}' is not an IPv4 address")));
                interface = Some(address?);
            }
            _ => return Err(wrong(format!("unknown parameter '{name}'"))),
        }
    }
    let locator = match scheme {
        "tcp" => {
            let (host, port) = host_and_port(rest).map_err(&wrong)?;
            Locator::Tcp { host, port }
        }
        "file" => {
            let path = PathBuf::from(rest.strip_prefix("localhost").unwrap_or(rest));
            if !path.is_absolute() || path.file_name().is_none() {
                return Err(wrong(
                    "the path of the file must be absolute, with three slashes: file:///path".into(),
                ));
            }
            Locator::File { path }
        }
        "multicast" => {
            let (address, job) = rest.split_once('/').unwrap_or((rest, ""));
            let (host, port) = host_and_port(address).map_err(&wrong)?;
            let group: std::net::Ipv4Addr =
                host.parse().map_err(|_| wrong(format!("'{host}' is not an IPv4 address")))?;
            if !group.is_multicast() {
                return Err(wrong(format!(
                    "{group} is not a multicast group (224.0.0.0 to 239.255.255.255)"
                )));
            }
            if job.is_empty() {
                return Err(wrong("it needs a name for the job, to tell it from others in the group".into()));
            }
            Locator::Multicast { group, port, job: job.to_owned(), interface }
        }
        "env" => return Err(wrong("env:// takes no other parts".into())),
        _ => return Err(wrong(format!("unknown scheme '{scheme}'"))),
    };
    Ok(ParsedUrl { locator, rank, world_size })
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let text = text.trim_end_matches('/');
    let (host, port) = text.rsplit_once(':').ok_or("it names no port")?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err("it names no host".into());
    }
    let port: u16 = port.parse().map_err(|_| format!("'{port}' is not a port number"))?;
    if port == 0 {
        return Err("port 0 means any port, but all ranks must know the port".into());
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn good_urls() {
        for (url, shown) in [
            ("tcp://node7:29500?rank=1&world_size=4", "tcp://node7:29500"),
            ("tcp://[::1]:80?rank=1&world_size=4", "tcp://[::1]:80"),
            ("file:///tmp/job?rank=1&world_size=4", "file:///tmp/job"),
            ("multicast://239.1.2.3:99/job-5?rank=1&world_size=4", "multicast://239.1.2.3:99/job-5"),
        ] {
            let spec = JoinSpec::parse_url_with(url, &nothing).unwrap();
            assert_eq!((spec.rank, spec.world_size, spec.locator.to_string()), (1, 4, shown.into()));
        }
    }

    #[test]
    fn rank_and_size_may_come_from_the_environment() {
        let environment = |name: &str| match name {
            "RANK" => Some("2".to_owned()),
            "WORLD_SIZE" => Some("3".to_owned()),
            _ => None,
        };
        let spec = JoinSpec::parse_url_with("file:///tmp/job", &environment).unwrap();
        assert_eq!((spec.rank, spec.world_size), (2, 3));
        assert!(spec.source.contains("RANK"), "{}", spec.source);
    }

    #[test]
    fn bad_urls() {
        for (url, problem) in [
            ("node7:29500", "no scheme"),
            ("udp://node7:29500", "scheme 'udp'"),
            ("tcp://node7", "names no port"),
            ("tcp://:80", "names no host"),
            ("tcp://node7:http", "'http' is not a port number"),
            ("tcp://node7:0", "port 0"),
            ("tcp://node7:80?rank=x&world_size=2", "rank is not a number"),
            ("tcp://node7:80?colour=2", "unknown parameter 'colour'"),
            ("tcp://node7:80?rank=2&world_size=2", "rank 2 does not exist"),
            ("tcp://node7:80?rank=0&world_size=0", "world size is 0"),
            ("tcp://node7:80", "names no rank"),
            ("file://relative/path?rank=0&world_size=1", "absolute"),
            ("multicast://10.0.0.1:80/job", "not a multicast group"),
            ("multicast://239.0.0.1:80", "a name for the job"),
        ] {
            let error = JoinSpec::parse_url_with(url, &nothing).unwrap_err().to_string();
            assert!(error.contains(problem), "{url}: {error}");
        }
    }
}
