//! The Markdown of our documents as roff: paragraphs, lists and blocks of code.

/// A part of a document without headings of its own.
pub(super) fn to_roff(text: &str) -> String {
    let mut roff = String::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            roff += if is_code { ".fi\n" } else { ".PP\n.nf\n" };
            is_code = !is_code;
        } else if is_code {
            roff += &format!("{}\n", escaped(line));
        } else if line.is_empty() {
            roff += ".PP\n";
        } else if let Some(item) = line.strip_prefix("- ") {
            roff += &format!(".IP \\(bu 2\n{}\n", inline(item));
        } else if line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(". ") {
            let (number, item) = line.split_once(". ").unwrap_or(("", line));
            roff += &format!(".IP {number}. 3\n{}\n", inline(item));
        } else {
            roff += &format!("{}\n", inline(line.trim_start()));
        }
    }
    roff
}

/// A line without the marks of links and code.
fn inline(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, target)) = rest.split_once("](") {
        let (_, after) = target.split_once(')').unwrap_or(("", target));
        plain += &before.replacen('[', "", 1);
        rest = after;
    }
    plain += rest;
    escaped(&plain.replace('`', ""))
}

/// Text that roff shows as it is.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_code_and_links_are_told_apart() {
        let text = "It is `TOML`, see [why](x.md).\n\n```toml\nport = \"1-2\"  # a\\b\n```\n- one\n  two\n1. first";
        let expected = "It is TOML, see why.\n.PP\n.PP\n.nf\nport = \"1\\-2\"  # a\\eb\n.fi\n.IP \\(bu 2\none\ntwo\n.IP 1. 3\nfirst\n";
        assert_eq!(to_roff(text), expected);
        assert_eq!(inline(".hidden"), "\\&.hidden");
    }
}
