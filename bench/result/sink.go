package result

// Sink takes measured cells. Its methods are safe for concurrent use.
type Sink interface {
	// Put takes a cell as soon as it is measured.
	Put(Cell)
	// Doing says what the run is doing now.
	Doing(what string)
	// Version says which version of a program is measured.
	Version(program, version string)
}
