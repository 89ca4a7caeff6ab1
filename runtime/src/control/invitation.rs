//! Invitation: the information by which a newcomer reaches a group, as text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::peers::waiting_list::{GroupId, MemberAddress};
use crate::error::{Error, Result};
use crate::job::JobSecret;
use crate::job::limits::MAX_MEMBER_ADDRESSES;
use crate::job::mac;

const PREFIX: &str = "kolo-invitation-1:";

const CHECK_BYTES: usize = 4;

/// The information by which a newcomer reaches a running group of ranks: see
/// [`Communicator::accept`](crate::Communicator::accept). As text ([`Display`](fmt::Display), [`FromStr`]), it has some
/// hundred to some thousand characters without blanks, and a program may pass it on in any way. Anyone who holds it can
/// become a member, so it must be kept as secret as the job itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    pub(super) group: GroupId,
    /// The listeners of some members. The listener of the inviting member comes first.
    pub(super) addresses: Vec<MemberAddress>,
    /// The part of the job's secret that newcomers must be told: see [`JobSecret::for_newcomers`].
    pub(super) secret: Option<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    group: GroupId,
    addresses: Vec<MemberAddress>,
    secret: Option<Vec<u8>>,
}

impl Invitation {
    pub(super) fn new(
        group: GroupId,
        own: MemberAddress,
        mut others: Vec<MemberAddress>,
        secret: Option<Vec<u8>>,
    ) -> Self {
        others.retain(|address| *address != own);
        others.truncate(MAX_MEMBER_ADDRESSES - 1);
        Self { group, addresses: std::iter::once(own).chain(others).collect(), secret }
    }

    /// Returns the job's secret, of which the newcomer may know a part.
    pub(super) fn job_secret(&self, known: Option<&JobSecret>) -> Option<JobSecret> {
        let Some(drawn) = &self.secret else { return known.cloned() };
        let drawn = JobSecret::drawn(drawn);
        Some(known.map_or(drawn.clone(), |known| drawn.mixed_with(known)))
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, addresses, secret } = self.clone();
        let contents = Contents { group, addresses, secret };
        let bytes = postcard::to_stdvec(&contents).map_err(|_| fmt::Error)?;
        f.write_str(PREFIX)?;
        bytes.iter().chain(&check(&bytes)).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl FromStr for Invitation {
    type Err = Error;

    /// # Errors
    /// [`Error::Configuration`] if the text is not an invitation, or not a complete one.
    fn from_str(text: &str) -> Result<Self> {
        let broken = |problem: &str| {
            Error::configuration(
                "invitation",
                problem.to_owned(),
                "Pass on everything that accept returned, unchanged",
            )
        };
        let digits =
            text.trim().strip_prefix(PREFIX).ok_or_else(|| broken("this text is not an invitation"))?;
        let bytes = from_hex(digits).ok_or_else(|| broken("it is truncated or altered"))?;
        let (bytes, sum) = bytes.split_at_checked(bytes.len().wrapping_sub(CHECK_BYTES)).unwrap_or_default();
        if sum.is_empty() || check(bytes) != sum {
            return Err(broken("it is truncated or altered"));
        }
        match postcard::take_from_bytes::<Contents>(bytes) {
            Ok((Contents { group, addresses, secret }, []))
                if (1..=MAX_MEMBER_ADDRESSES).contains(&addresses.len()) =>
            {
                Ok(Self { group, addresses, secret })
            }
            _ => Err(broken("it comes from another version of Kolo")),
        }
    }
}

/// Computes a checksum against slips. It does not protect from forgery, which is useless without the keys in the
/// invitation.
fn check(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    use hmac::Mac;
    let sum = mac(&[], b"kolo invitation", &[bytes]).finalize().into_bytes();
    std::array::from_fn(|i| sum[i])
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = digits.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::ListenerAddress;

    #[test]
    fn an_invitation_survives_as_text_and_a_part_of_it_does_not() {
        let address = |host_key| MemberAddress { listener: ListenerAddress::default(), host_key };
        let many = (0..40).map(address).collect();
        let made = Invitation::new([7; 16], address(3), many, Some(vec![5; 32]));
        assert_eq!((made.addresses.len(), made.addresses[0].host_key), (MAX_MEMBER_ADDRESSES, 3));
        let text = made.to_string();
        assert_eq!(format!(" {text}\n").parse::<Invitation>().unwrap(), made);
        let told = |text: &str| text.parse::<Invitation>().unwrap_err().to_string();
        for end in PREFIX.len()..text.len() {
            assert!(told(&text[..end]).contains("truncated or altered"), "{}", &text[..end]);
        }
        assert!(told(&text.replace("0003", "0004")).contains("truncated or altered"));
        assert!(told("").contains("not an invitation") && told("kolo-invitation-1:zz").contains("truncated"));
        assert!(!format!("{made:?}").contains("key: ["), "its keys are not printed");
    }
}
