//! A peer may write anything: the session engine answers with an error at worst. The same functions
//! are fuzzed by `fuzz/`.

mod end;
#[path = "../../src/fuzzing/seeds.rs"]
mod seeds;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_decode_to_a_message_or_an_error(data in any::<[u8; 48]>()) {
        end::decode(&data);
    }

    #[test]
    fn any_messages_do_no_harm_to_the_engine(
        data in prop::collection::vec(any::<u8>(), 0..4000)
    ) {
        end::run(&data);
    }
}

#[test]
fn inputs_that_were_kept_do_no_harm() {
    assert!(seeds::each("decode", end::decode) > 0);
    assert!(seeds::each("engine", end::run) > 0);
}
