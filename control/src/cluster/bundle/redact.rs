//! Takes secrets out of texts.
//!
//! No page of Guideway shows one, and Secrets are not read. But a log quotes what it was given: a seed that is no
//! number, a file in the place of another, an error of a server. So what looks like a secret is taken out everywhere.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::Regex;

/// What is in the place of a secret.
const TAKEN_OUT: &[u8] = b"${before}[taken out]";

static SECRETS: LazyLock<[Regex; 4]> = LazyLock::new(|| {
    // A name with its value, in YAML, JSON, JSON within a text, or as our messages quote it: `hash_seed "0x12"`. A short
    // value is one only if it is a number: the others are words, such as `token: is too old`.
    let named = r#"(?i-u)(?P<before>(?:hash_seed|[a-z0-9_-]*(?:token|passw(?:or)?d|secret)|client-key-data|authorization)
        (?: ["'\\]*[\ \t]*[:=][\ \t]*["'\\]* | [\ \t]+\\?["'] )
        (?: (?:bearer|basic)[\ ]+ )?)
        (?: [0-9][^\s"'\\,;{}\[\]()]* | [^\s"'\\,;{}\[\]()]{6,} )"#;
    [
        // A private key, whole or broken off.
        r"(?s-u)-----BEGIN\ [A-Z\ ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z\ ]*PRIVATE\ KEY-----|\z)",
        // The same in base64, as in a kubeconfig; certificates with it.
        r"(?-u)LS0tLS1CRUdJTi[A-Za-z0-9+/=_-]+",
        // A token of a service account, or of an identity provider.
        r"(?-u)eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",
        named,
    ]
    .map(|pattern| Regex::new(&format!("(?x){pattern}")).expect("a pattern"))
});

/// Returns a text without what looks like a secret.
pub(super) fn redacted(text: &[u8]) -> Cow<'_, [u8]> {
    SECRETS.iter().fold(Cow::Borrowed(text), |text, pattern| {
        match pattern.replace_all(&text, TAKEN_OUT) {
            Cow::Borrowed(_) => text,
            Cow::Owned(changed) => Cow::Owned(changed),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_secrets(text: &str) -> String {
        String::from_utf8(redacted(text.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn secrets_are_taken_out_in_every_form_that_a_text_may_have() {
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl";
        for (text, left) in [
            ("hash_seed: 7\nx", "hash_seed: [taken out]\nx"),
            ("hash_seed: 0xFEED, a", "hash_seed: [taken out], a"),
            (
                r#"hash_seed "0xfeedg": not a number"#,
                r#"hash_seed "[taken out]": not a number"#,
            ),
            (
                r#"{"reason":"hash_seed \"feedf00d\": no"}"#,
                r#"{"reason":"hash_seed \"[taken out]\": no"}"#,
            ),
            (
                r#""client_secret": "S3cret!pw""#,
                r#""client_secret": "[taken out]""#,
            ),
            ("PASSWORD=hunter22", "PASSWORD=[taken out]"),
            (
                "Authorization: Bearer abc.def-0123",
                "Authorization: Bearer [taken out]",
            ),
            ("    token: abcdef.0123", "    token: [taken out]"),
            (
                "client-key-data: AAAABBBB=\n",
                "client-key-data: [taken out]\n",
            ),
            ("x LS0tLS1CRUdJTiBQUk= y", "x [taken out] y"),
            (
                "-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nafter",
                "[taken out]\nafter",
            ),
            ("-----BEGIN PRIVATE KEY-----\nMHcCAQ", "[taken out]"),
            (token, "[taken out]"),
        ] {
            assert_eq!(without_secrets(text), left);
        }
    }

    #[test]
    fn what_is_said_of_secrets_stays() {
        for text in [
            r#""hash_seed":"of the cluster's Secret, not shown""#,
            r#""hash_seed":{"source":"of the file","fingerprint":"0123"}"#,
            r#""needs_restart":["hash_seed","tables"]"#,
            "cannot read the Secret guideway-system/guideway-seed: forbidden",
            r#"secrets "guideway-seed" is forbidden"#,
            "invalid bearer token",
        ] {
            assert_eq!(without_secrets(text), text);
        }
    }
}
