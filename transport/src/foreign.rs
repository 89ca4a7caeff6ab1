//! Text from other parties (peers, files, unknown processes), made safe to print.
//!
//! Such text ends up in errors and logs, and so on terminals, where a control character moves the cursor and a
//! bidirectional mark reverses a line. Every such text therefore passes [`printable`] where its bytes become text. It
//! may pass more than once.

/// Returns the text with every character escaped that terminals do not simply show, cut to at most `most` bytes
/// ("..." at the end marks a cut). Passing the result in again with the same limit changes nothing.
#[must_use]
pub fn printable(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len().min(most));
    for c in text.chars() {
        // The loop stops soon after the limit, however long the text is.
        if out.len() > most {
            break;
        }
        match c {
            '\n' | '\r' | '\t' => out.extend(c.escape_default()),
            _ if c.is_control() || is_invisible(c) => out.extend(c.escape_unicode()),
            _ => out.push(c),
        }
    }
    if out.len() > most {
        let mut end = most.saturating_sub(3);
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        out.push_str(&"..."[..most.min(3)]);
    }
    out
}

/// Like [`printable`], for bytes that should be UTF-8.
#[must_use]
pub fn printable_bytes(bytes: &[u8], most: usize) -> String {
    // A character has at most four bytes. One more character than fits is enough to show that the text was cut.
    let seen = &bytes[..bytes.len().min(most.saturating_mul(4).saturating_add(4))];
    printable(&String::from_utf8_lossy(seen), most)
}

/// Returns whether a character is a mark of direction, a joiner, a line separator, or one of the tags that spell
/// invisible text.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_moves_the_cursor_is_shown_as_text() {
        assert_eq!(printable("plain, ä, 漢字 and \\ stay", 100), "plain, ä, 漢字 and \\ stay");
        assert_eq!(printable("\x1b[2J\x07a\nb\0", 100), "\\u{1b}[2J\\u{7}a\\nb\\u{0}");
        assert_eq!(printable("x\u{202e}y\u{9b}z\u{2066}", 100), "x\\u{202e}y\\u{9b}z\\u{2066}");
        assert_eq!(printable_bytes(b"a\xff\x1b", 100), "a\u{fffd}\\u{1b}");
        assert_eq!(printable(&"ä".repeat(100), 20), format!("{}...", "ä".repeat(8)));
    }

    proptest! {
        #[test]
        fn nothing_but_printable_text_comes_out(text: String, most in 0usize..80) {
            let once = printable(&text, most);
            prop_assert!(once.len() <= most);
            prop_assert!(!once.chars().any(|c| c.is_control() || is_invisible(c)));
            prop_assert_eq!(printable(&once, most), once);
        }
    }
}
