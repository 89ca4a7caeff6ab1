//! Settings of a launcher whose ranks come and go.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// The launcher's settings for a group whose members come and go. Each process has its own, and all later communicators
/// inherit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elastic {
    /// The least and the greatest number of ranks: `KOLO_ELASTIC`, such as `2:4`.
    pub(crate) bounds: Option<(u32, u32)>,
    /// File in which this rank keeps an invitation for newcomers, perhaps shared with other ranks: `KOLO_INVITE`.
    pub(crate) invite: Option<PathBuf>,
}

impl Elastic {
    /// # Errors
    /// [`Error::Configuration`] if a variable is not understood.
    pub(crate) fn from_lookup(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name| environment(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let bounds = |text: String| {
            let (least, most) = text.split_once(':').unwrap_or((&text, "0"));
            let bounds = least.parse().ok().zip(most.parse().ok());
            let bounds = bounds.filter(|(least, most)| *least > 0 && (*most == 0 || least <= most));
            let remedy = "Set it to the minimum and maximum number of ranks, such as 2:4, as kolo run \
                          --elastic does";
            bounds.ok_or_else(|| {
                Error::configuration("KOLO_ELASTIC", format!("'{text}' is not a pair of numbers"), remedy)
            })
        };
        let invite = set("KOLO_INVITE").map(PathBuf::from);
        Ok(Self { bounds: set("KOLO_ELASTIC").map(bounds).transpose()?, invite })
    }
}
