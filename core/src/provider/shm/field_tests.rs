//! What tests/hostile/layout.h says of a segment's layout, which the scribbler there writes by: the file is checked here, and written.

use super::layout::{Geometry, Head, Joining, MAGIC, VERSION};
use crate::session::{Role, HEADER_SIZE, LARGEST_BODY};
use std::fmt::Write;

/// Is told of a field: its name, its address, and its bytes.
pub(super) type Tell<'a> = &'a mut dyn FnMut(&'static str, usize, usize);

/// Tells of the fields of a structure. All of them are to be named: those behind the semicolon are told by the caller.
macro_rules! tell {
    ($of:expr, $tell:ident, $type:ident { $($field:ident),* ; $($rest:ident),* }) => {
        let $type { $($field,)* $($rest),* } = $of;
        $($tell(stringify!($field), std::ptr::from_ref($field).addr(), size_of_val($field));)*
    };
}
pub(super) use tell;

/// The scribbler's file.
const KNOWN: &str = include_str!("../../../../tests/hostile/layout.h");
/// Write the file anew: where this names one.
const WRITE_TO: &str = "SANSHIM_LAYOUT_TO";

/// Divisions by which the scribbler checks its own sums.
const DIVISIONS: [Geometry; 2] = [
    Geometry {
        buffers: 16,
        message_size: 1536,
        send_buffer: 1 << 20,
        largest_message: 16 << 10,
        largest_send_buffer: 4 << 20,
    },
    Geometry {
        buffers: 4,
        message_size: 256,
        send_buffer: 1 << 16,
        largest_message: 512,
        largest_send_buffer: 1 << 17,
    },
];

fn fields(head: &Head) -> Vec<(String, usize, usize)> {
    let base = std::ptr::from_ref(head).addr();
    let mut found = Vec::new();
    let mut note = |of: &str, name: &str, at: usize, bytes: usize| {
        found.push((format!("{of}{name}"), at - base, bytes));
    };
    let mut tell = |name: &'static str, at, bytes| note("", name, at, bytes);
    tell!(head, tell, Head {
        magic, version, buffers, message_size, send_buffer, largest_message, largest_send_buffer; joining, sides
    });
    let Joining { agreement, exchange } = &joining.0;
    tell("state", std::ptr::from_ref(agreement).addr(), size_of_val(agreement));
    tell("exchange", std::ptr::from_ref(exchange).addr(), size_of_val(exchange));
    for (of, side) in ["connector ", "acceptor "].into_iter().zip(sides) {
        side.each_field(&mut |name, at, bytes| note(of, name, at, bytes));
    }
    found
}

fn layout() -> String {
    // SAFETY: a head is atomics and bytes, for which zeroes are a valid start.
    let head: Box<Head> = unsafe { Box::new(std::mem::zeroed()) };
    let mut text = String::from(
        "/* What lies where in a segment. Made by core/src/provider/shm/field_tests.rs, whose test says how and fails where this is stale. */\n",
    );
    let constants = [
        ("SEGMENT_VERSION", VERSION as usize),
        ("HEAD_SIZE", size_of::<Head>()),
        ("HEADER_SIZE", HEADER_SIZE),
        ("LARGEST_BODY", LARGEST_BODY),
    ];
    for (name, value) in constants {
        writeln!(text, "#define {name} {value}").unwrap();
    }
    writeln!(text, "#define MAGIC {MAGIC:#x}ULL").unwrap();
    writeln!(text, "#define FIELDS \\").unwrap();
    for (name, at, bytes) in fields(&head) {
        writeln!(text, "    {{\"{name}\", {at}, {bytes}}}, \\").unwrap();
    }
    writeln!(text, "\n/* A division, and where it puts things. */\n#define DIVISIONS \\").unwrap();
    for g in DIVISIONS {
        let [messages, send_buffers, end] = g.large_offsets();
        let slot = |sender, sequence| g.slot_offset(g.pairs_offset(), sender, sequence);
        let large = |sender, sequence| g.large_slot_offset(messages, sender, sequence);
        let (connector, acceptor) = (Role::Connector, Role::Acceptor);
        writeln!(
            text,
            "    {{{{{}, {}, {}, {}, {}}}, {{{}, {}, {}, {}}}, {{{}, {}, {}, {}}}, {{{}, {}}}, {{{}, {}, {}}}}}, \\",
            g.buffers, g.message_size, g.send_buffer, g.largest_message, g.largest_send_buffer,
            slot(connector, 1), slot(connector, 2), slot(acceptor, 2), slot(acceptor, 3),
            large(connector, 1), large(connector, 2), large(acceptor, 2), large(acceptor, 3),
            g.send_buffer_offset(connector), g.send_buffer_offset(acceptor),
            messages, send_buffers, end,
        )
        .unwrap();
    }
    text.push('\n');
    text
}

#[test]
fn the_scribbler_knows_each_field() {
    let now = layout();
    if let Some(file) = std::env::var_os(WRITE_TO) {
        std::fs::write(file, &now).unwrap();
        return;
    }
    assert!(
        now == KNOWN,
        "tests/hostile/layout.h is stale: {WRITE_TO}=$PWD/tests/hostile/layout.h cargo test -p sanshim-core --lib the_scribbler"
    );
}
