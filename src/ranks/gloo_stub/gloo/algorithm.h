// Torch ships Gloo compiled, without its headers. c10d's header names these types; only what it needs is declared here.
#pragma once
