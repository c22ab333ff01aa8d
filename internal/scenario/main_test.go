package scenario_test

import (
	"testing"

	"nftproxy/internal/testnet/userns"
)

func TestMain(m *testing.M) { userns.Main(m) }
