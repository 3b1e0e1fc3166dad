//! Steering inputs: what a request may say about where it goes, if its sender is trusted.

use berth_shared_state::config::Trust;
use berth_shared_state::names::{
    COOKIE_PREFIX, ENDPOINT_SUBSET, FAIRNESS_ID, MODEL_NAME, OBJECTIVE, REQUEST_TIMEOUT_MS, SESSION,
};
use berth_shared_state::units::Millis;
use xxhash_rust::xxh64::xxh64;

use super::TOO_LONG;
use crate::limits::{COOKIES_MAX_BYTES, KEPT_MAX_BYTES};

/// What trusted headers say. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steering {
    /// Only these pods: present but empty allows none.
    pub subset: Option<String>,
    /// The model, for a body that does not tell it.
    pub model: Option<String>,
    /// The session.
    pub session: Option<String>,
    /// The objective, whether the config knows it or not.
    pub objective: Option<String>,
    /// The tenant.
    pub flow: Option<String>,
    /// How long the client waits for the whole answer.
    pub timeout: Option<Millis>,
    /// The pool, by its place in the config: the proxy's own route leads there.
    pub pool: Option<usize>,
    /// Cookies that Berth may have set. They are sealed, so whoever sends them need not be trusted.
    pub cookies: String,
    /// The client reaches the proxy by https: its cookies need not go another way.
    pub secure: bool,
}

impl Steering {
    /// Takes the headers that `trust` names; an untrusted copy says nothing. A subset that occurs
    /// several times is joined as HTTP does.
    pub fn from_headers<'a>(trust: &Trust, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut steering = Self::default();
        for (name, value) in headers {
            let Some(name) = trust.headers.iter().find(|trusted| trusted.eq_ignore_ascii_case(name)) else {
                continue;
            };
            steering.take(name, &String::from_utf8_lossy(value));
        }
        steering
    }

    /// Takes the cookies that Berth may have set.
    pub fn take_cookies<'a>(&mut self, headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        for (name, value) in headers {
            let text = core::str::from_utf8(value).unwrap_or_default();
            match name {
                ":scheme" => self.secure = text == "https",
                "cookie" => {
                    let own = text
                        .split(';')
                        .map(str::trim)
                        .filter(|cookie| cookie.starts_with(COOKIE_PREFIX));
                    for cookie in own {
                        if self.cookies.len() + cookie.len() < COOKIES_MAX_BYTES {
                            self.cookies.extend([cookie, ";"]);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// What filters before this one told, by the name of the input, in place of what headers say of it. What is no
    /// text says nothing: neither bytes that are no UTF-8, nor any with control bytes, which whole numbers have.
    #[must_use]
    pub fn told<'a>(mut self, inputs: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        for (name, value) in inputs {
            let text = String::from_utf8(value).ok();
            if let Some(value) = text.filter(|text| !text.chars().any(char::is_control)) {
                if name == ENDPOINT_SUBSET {
                    self.subset = None;
                }
                self.take(name, &value);
            }
        }
        self
    }

    /// What deciding anew takes of it, in this pool: its class is known, and other pools' cookies say nothing here.
    pub(super) fn to_wait(&self, pool: &str) -> Self {
        let own = |cookie: &&str| {
            let name = cookie.split_once('=').map(|(name, _)| name);
            name.and_then(|name| name.strip_prefix(COOKIE_PREFIX)) == Some(pool)
        };
        let cookie = self.cookies.split(';').map(str::trim).find(own);
        Self {
            subset: self.subset.clone(),
            model: self.model.clone(),
            session: self.session.clone(),
            pool: self.pool,
            cookies: cookie.unwrap_or_default().to_owned(),
            secure: self.secure,
            ..Self::default()
        }
    }

    /// Bytes of memory that it takes.
    pub(super) fn memory(&self) -> usize {
        let texts = [&self.subset, &self.model, &self.session, &self.objective, &self.flow];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        size_of::<Self>() + texts + self.cookies.len()
    }

    fn take(&mut self, name: &str, value: &str) {
        let text = value.trim();
        // The first of a header and its alias counts.
        let first = |known: &Option<String>, aliases: [&str; 2]| {
            aliases.contains(&name) && !text.is_empty() && (known.is_none() || name == aliases[0])
        };
        match name {
            ENDPOINT_SUBSET => match &mut self.subset {
                Some(all) => {
                    all.push(',');
                    all.push_str(value);
                }
                None => self.subset = Some(value.to_owned()),
            },
            _ if first(&self.objective, OBJECTIVE) => self.objective = Some(named(text)),
            _ if first(&self.flow, FAIRNESS_ID) => self.flow = Some(named(text)),
            REQUEST_TIMEOUT_MS => self.timeout = text.parse().ok().map(Millis).or(self.timeout),
            SESSION if !text.is_empty() => self.session = Some(named(text)),
            MODEL_NAME if text.len() > KEPT_MAX_BYTES => self.model = Some(TOO_LONG.to_owned()),
            MODEL_NAME if !text.is_empty() => self.model = Some(text.to_owned()),
            _ => {}
        }
    }
}

/// A name of a sender's own choice. It only has to tell one from another, so a hash stands for a long one.
fn named(text: &str) -> String {
    if text.len() > KEPT_MAX_BYTES {
        format!("{:016x}", xxh64(text.as_bytes(), 0))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests;
