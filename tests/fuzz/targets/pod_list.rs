#![cfg_attr(fuzzing, no_main)]
#![allow(missing_docs)]
berth_tests_fuzz::fuzz!(pod_list);
