// Compiled for its precompiled header alone, which the tests and examples use.
int main() {}
