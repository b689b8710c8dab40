//! include/sanshim_provider.h and the Rust side agree: sizes, offsets, constants.

use crate::{tree, Folder};
use sanshim_core::provider::interface::abi::{OverlappedTable, ProviderTable};
use sanshim_core::provider::interface::*;
use std::mem::offset_of;
use std::process::Command;

/// Pairs of a C expression and what it must be.
fn expectations() -> Vec<(String, i64)> {
    let mut all: Vec<(String, i64)> = Vec::new();
    macro_rules! layout {
        ($c:literal, $rust:ty; $($field:ident)*) => {
            all.push((format!("sizeof(struct {})", $c), size_of::<$rust>() as i64));
            $(all.push((format!("offsetof(struct {}, {})", $c, stringify!($field)),
                        offset_of!($rust, $field) as i64));)*
        };
    }
    layout!("sanshim_info", Info; kind version families);
    layout!("sanshim_limits", Limits; max_registration max_message max_transfer max_inline
        max_segments max_receive_depth max_initiator_depth max_shared_receive_depth
        max_completion_depth max_inbound_reads max_outbound_reads max_private_data rdma_threshold
        flags reserved);
    layout!("sanshim_segment", MemoryPiece; address length token);
    layout!("sanshim_remote_memory", RemoteMemory; address token);
    layout!("sanshim_completion", Completion; request queue_pair status kind length reserved);
    layout!("sanshim_queue_pair_attributes", QueuePairAttributes; context receive_depth
        initiator_depth segments inline_size);
    layout!("sanshim_overlapped", OverlappedTable; descriptor next_result cancel);
    layout!("sanshim_provider_table", ProviderTable; size version query unusable can_unload open
        close_provider addresses open_adapter close_adapter query_adapter create_completion_queue
        create_memory_region create_shared_receive_queue create_queue_pair create_connector
        create_listener completion_queue close_completion_queue get_results notify
        close_memory_region register_memory deregister_memory local_token
        close_shared_receive_queue receive_shared close_queue_pair send send_inline receive read
        write bind invalidate flush connector close_connector bind_connector connect
        complete_connect accept reject private_data local_address peer_address notify_disconnect
        disconnect listener close_listener bind_listener listen listener_address
        get_connection_request);
    let mut constant = |name: &str, value: i64| all.push((format!("SANSHIM_{name}"), value));
    constant("PROVIDER_VERSION", VERSION.into());
    for error in Error::ALL {
        constant(&upper(&format!("{error:?}")), -(*error as i64));
    }
    for kind in [
        RequestKind::Receive,
        RequestKind::Send,
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Bind,
        RequestKind::Invalidate,
        RequestKind::Unknown,
        RequestKind::Told,
    ] {
        constant(&upper(&format!("KIND{kind:?}")).replace("K_I_N_D", "KIND"), kind as i64);
    }
    constant("IPV4", Info::IPV4.into());
    constant("IPV6", Info::IPV6.into());
    constant("BIND", Limits::BIND.into());
    constant("APPLICATION_MEMORY", Limits::APPLICATION_MEMORY.into());
    constant("UNHELD", Limits::UNHELD.into());
    constant("TELLS", Limits::TELLS.into());
    constant("BIND_ALONE", Limits::BIND_ALONE.into());
    constant("READ", RemoteAccess::Read as i64);
    constant("WRITE", RemoteAccess::Write as i64);
    constant("SILENT", Flags::SILENT.0.into());
    constant("READ_FENCE", Flags::READ_FENCE.0.into());
    constant("AT_ONCE", Flags::AT_ONCE.0.into());
    constant("TELL", Flags::TELL.0.into());
    all
}

/// `InvalidParameter` to `INVALID_PARAMETER`.
fn upper(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

#[test]
fn the_c_header_says_what_the_library_does() {
    let folder = Folder::new();
    let source = folder.0.join("check.c");
    let mut text = String::from("#include \"sanshim_provider.h\"\n#include <stddef.h>\n");
    for (expression, value) in expectations() {
        text += &format!("_Static_assert({expression} == {value}, \"{expression} is {value}\");\n");
    }
    std::fs::write(&source, text).unwrap();
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .arg(tree("../include"))
        .arg(source)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
