// The main program of an interpreter.
int Py_BytesMain(int argc, char** argv);

int main(int argc, char** argv) { return Py_BytesMain(argc, argv); }
