package scenario_test

import (
	"testing"

	"nftproxy/test/lib/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }
