// The invariants of the training loop, to be checked for your own model, data and Step.
//
//     CATCH_TEST_CASE("our training resumes exactly") {
//       CATCH_CHECK(lockstep::testing::check_resume(Digits()).difference == "");
//     }
//
// Each function runs a case (see testing/case.hpp) several times and compares the runs: to the last bit,
// check_accumulate and check_ranks excepted. What the case itself throws comes through. Needs no test framework.
// All but check_ranks run in a single process.
//
//     check_accumulate   microbatches give the update of their concatenation
//     check_ranks        N ranks give the update of one that sees all their batches
//     check_resume       killed and resumed = not interrupted
//     check_stop         stopped and resumed, or continued = not stopped
//     check_evaluate     evaluating changes no training bit
//     check_skip         an empty window changes only the position in the data, a failed one nothing
//     check_workers      the number of loader threads changes no bit
//     check_observers    logging and saving change no bit
//     check_schedule     the rate depends on the number of the update alone
#pragma once

#include "lockstep/testing/accumulation.hpp"
#include "lockstep/testing/case.hpp"
#include "lockstep/testing/disturbance.hpp"
#include "lockstep/testing/interruption.hpp"
#include "lockstep/testing/ranks.hpp"
#include "lockstep/testing/record.hpp"
