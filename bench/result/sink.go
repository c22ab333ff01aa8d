package result

// Sink takes what is measured. Its methods are safe for concurrent use.
type Sink interface {
	// Put takes a cell as soon as it is measured.
	Put(Cell)
	// Doing tells what is going on.
	Doing(what string)
	// Version tells which program was measured.
	Version(program, version string)
}
